//! The demo: the main job of Stale Guard, shown on real Envoy in six variants.
#![allow(clippy::print_stdout, reason = "a command's output is what it is for")]

mod report;
mod scenario;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};

use crate::{
    report::{Report, VariantResult},
    scenario::Scenario,
};

/// Replaces every pod under load, in six variants of the proxy's configuration, and reports.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// Folder for `report.json` and `report.svg`.
    #[arg(long, default_value = "target/demo")]
    dir: PathBuf,
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

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    match arguments.command {
        None => run(&arguments.dir),
        Some(Command::Render { dir }) => render(&dir),
    }
}

fn run(dir: &Path) -> Result<()> {
    let scenario = Scenario::default();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let variants = scenario.variants();
    let mut report = Report::default();
    for (index, variant) in variants.iter().enumerate() {
        let result = runtime.block_on(scenario.run(*variant)).with_context(|| format!("variant {}", variant.name()))?;
        println!("{}", report::progress_line(index, variants.len(), &result));
        report.variants.push(result);
    }
    println!("{}", report::table(&report));
    for file in report.write(dir)? {
        println!("wrote {}", file.display());
    }
    verdict(&scenario, &report)
}

/// The demo fails when what it is to show did not happen.
fn verdict(scenario: &Scenario, report: &Report) -> Result<()> {
    let find = |name: &str| report.variants.iter().find(|variant| variant.name == name).context("a variant is missing");
    let failed = |variant: &VariantResult| variant.failed_get + variant.failed_post;
    if failed(find("stock")?) == 0 {
        bail!("stock Envoy failed no request: the fault was not injected, and the other figures prove nothing");
    }
    for name in ["fence only", "stale-guard"] {
        let variant = find(name)?;
        if failed(variant) + variant.duplicate_posts > 0 {
            bail!("{name} failed {} requests and executed {} POST twice", failed(variant), variant.duplicate_posts);
        }
        if variant.tls_handshakes >= 2 * scenario.pairs() {
            bail!("{name} made {} handshakes for {} pairs of pod and worker", variant.tls_handshakes, scenario.pairs());
        }
    }
    Ok(())
}

fn render(dir: &Path) -> Result<()> {
    let path = dir.join("report.json");
    let report = Report::read(&path).with_context(|| format!("no report of an earlier run in {}", path.display()))?;
    let total = report.variants.len();
    for (index, variant) in report.variants.iter().enumerate() {
        println!("{}", report::progress_line(index, total, variant));
    }
    println!("{}", report::table(&report));
    for file in report.write(dir)? {
        println!("wrote {}", file.display());
    }
    Ok(())
}
