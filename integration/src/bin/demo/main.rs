//! The demo: the main job of Stale Guard, shown on real Envoy in six variants.
#![allow(clippy::print_stdout, reason = "a command's output is what it is for")]

mod report;

use anyhow::Context;
use clap::{Parser, Subcommand};
use report::Report;
use std::path::PathBuf;

/// Replaces every pod under load, in six variants of the proxy's configuration, and reports.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Prints the table and draws the picture of an earlier run again, from its `report.json`.
    Render {
        /// Folder with `report.json`; `report.svg` is written there.
        #[arg(long, default_value = "target/demo")]
        dir: PathBuf,
    },
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().command {
        Command::Render { dir } => {
            let path = dir.join("report.json");
            let report = Report::read(&path).with_context(|| format!("no report of an earlier run in {path:?}"))?;
            let total = report.variants.len();
            for (index, variant) in report.variants.iter().enumerate() {
                println!("{}", report::progress_line(index, total, variant));
            }
            println!("{}", report::table(&report));
            for file in report.write(&dir)? {
                println!("wrote {}", file.display());
            }
        }
    }
    Ok(())
}
