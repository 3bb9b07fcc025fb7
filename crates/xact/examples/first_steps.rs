//! Moves an amount between two files in one transaction: `first_steps IMG`.

use std::path::Path;

use xact::{Error, PathExt, Volume, VolumeOptions};

fn main() -> xact::Result<()> {
    let Some(image) = std::env::args_os().nth(1).filter(|word| word != "--help") else {
        eprintln!("usage: first_steps IMG");
        std::process::exit(64);
    };
    let volume = Volume::open_path(Path::new(&image), &VolumeOptions::default())?;

    let transaction = volume.begin(Default::default());
    transaction.create_dir_all("/accounts")?;
    transaction.write("/accounts/ann", "70")?;
    transaction.write("/accounts/bob", "130")?;
    assert!(!volume.exists("/accounts/ann")?, "nothing is visible before the commit");

    match transaction.commit() {
        Ok(()) => println!("ann has {}", volume.read_to_string("/accounts/ann")?),
        Err(Error::Conflict { path, why, .. }) => println!("another change came first: {path}: {why}"),
        Err(error) => return Err(error),
    }
    volume.close()
}
