//! Moves an amount between two files in one transaction: `first_steps IMG`.

use std::path::PathBuf;

use xact::{Error, Files, Volume, VolumeOptions};

fn main() -> xact::Result<()> {
    let image = PathBuf::from(std::env::args_os().nth(1).expect("usage: first_steps IMG"));
    let volume = Volume::open_path(&image, &VolumeOptions::default())?;

    let transaction = volume.begin(Default::default());
    transaction.create_dir_all("/accounts")?;
    transaction.write_file("/accounts/ann", b"70")?;
    transaction.write_file("/accounts/bob", b"130")?;
    assert!(!volume.base().exists("/accounts/ann")?, "nothing is visible before the commit");

    match transaction.commit() {
        Ok(()) => println!("ann has {}", text(volume.base().read_file("/accounts/ann")?)),
        Err(Error::Conflict { path, why, .. }) => println!("another change came first: {path}: {why}"),
        Err(error) => return Err(error),
    }
    volume.close()
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8_lossy(&bytes).into_owned()
}
