//! Gives the library the name that programs are linked against.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libxact.so.0");
}
