//! What `watch` costs Envoy's main thread, measured on real Envoys with the module's release build.
//!
//! ```text
//! cargo build --release -p stale-guard
//! STALE_GUARD_MODULE=target/release/libstale_guard.so cargo run -p stale-guard-lab --bin watch-bench -- updates
//! ```

mod cost;
mod polls;
mod record;
mod updates;

use std::path::PathBuf;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Measures the cost of watching endpoints")]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// EDS updates with and without the config validators.
    Updates {
        /// Repetitions of each.
        #[arg(long, default_value_t = 20)]
        repetitions: usize,
        /// Endpoints of the cluster.
        #[arg(long, value_delimiter = ',', default_values_t = [1_000, 10_000, 50_000])]
        endpoints: Vec<usize>,
    },
    /// Polls, the formats that they could ask for, and looks at the control plane's connection.
    Polls {
        /// Endpoints of the cluster.
        #[arg(long, value_delimiter = ',', default_values_t = [1_000, 10_000])]
        endpoints: Vec<usize>,
    },
    /// Writes real responses to a folder with one subfolder for each fuzz target.
    Record {
        /// The folder, such as `fuzz/corpus`.
        folder: PathBuf,
    },
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match Arguments::parse().what {
        What::Updates { repetitions, endpoints } => updates::run(&endpoints, repetitions).await,
        What::Polls { endpoints } => polls::run(&endpoints).await,
        What::Record { folder } => record::run(&folder).await,
    }
}
