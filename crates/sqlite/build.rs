//! Gives the library the name that it is loaded by: the cache of ld.so(8) lists libraries by it.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libxact_sqlite.so");
}
