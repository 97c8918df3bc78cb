//! Writes the seeds of every target to `seeds/TARGET/NAME`, and removes files there that are no seeds any more.

use std::fs;
use std::io;
use std::path::Path;

fn main() -> io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    for (target, name, bytes) in memlane_fuzz::seeds::seeds() {
        fs::create_dir_all(folder.join(target))?;
        fs::write(folder.join(target).join(name), bytes)?;
    }
    Ok(())
}
