//! `memlane check`: the mistakes in a network's file, and the packaged unit that serves it.

use std::path::PathBuf;

use clap::Args;

use super::{Failure, output};
use crate::config::Config;
use crate::config::unit::{Unit, is_packaged};
use crate::quantity::counted;

/// Arguments of `memlane check`.
#[derive(Debug, Args)]
pub(super) struct Check {
    /// The network's file.
    net: PathBuf,
    /// Print the drop-in by which the packaged unit allows keys of the file: web, metrics, access, and sockets elsewhere than in /run/memlane.
    #[arg(long)]
    unit: bool,
}

impl Check {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let config = Config::load(&self.net)?;
        let file = std::path::absolute(&self.net).map_err(Failure::running)?;
        let stem = file.file_stem().unwrap_or_default().to_string_lossy();
        let unit = Unit::of(&config, &stem);
        if self.unit {
            let none = || format!("# {} serves {} without a drop-in.\n", unit.name, file.display());
            return output::print(&unit.drop_in(&file).unwrap_or_else(none));
        }
        let (ports, segments) = (config.ports.len(), config.segments().len());
        let notes = config.notes().into_iter().chain(config.lacks());
        let notes: String = notes.map(|note| format!("note: {note}\n")).collect();
        let installed = std::fs::read_to_string(unit.path()).ok();
        let served = if is_packaged(&file) { unit.told(&file, installed.as_deref()) } else { String::new() };
        output::print(&format!(
            "{}: {} on {}, no mistakes\n{notes}{served}",
            self.net.display(),
            counted(ports, "port"),
            counted(segments, "segment")
        ))
    }
}
