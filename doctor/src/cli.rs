//! The command line.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};

use crate::{
    Code, Input, Report, Severity, examine,
    fetch::{Limits, Source},
};

/// The exit status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Nothing was found at or above the threshold.
    Clean,
    /// Something was.
    Found,
    /// The command line is wrong.
    Usage,
    /// The input could not be had, or is no `config_dump`.
    Unreadable,
}

#[derive(Debug, Parser)]
#[command(
    name = "stale-guard-doctor",
    version,
    about = "Says whether an Envoy proxy can suffer from stale connections, and whether Stale Guard is installed rightly",
    long_about = "Reads what a proxy's admin endpoint shows, and says in plain words whether this proxy can suffer from \
                  stale connections, whether the dynamic module Stale Guard is installed rightly, and what to change. \
                  It only looks: nothing is changed, and nothing but the admin endpoint that is named is asked.",
    after_long_help = "Exit status: 0 nothing at or above the threshold, 1 something, 2 wrong command line, 3 the input \
                       could not be had or is no config_dump.",
    arg_required_else_help = true,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    check: Check,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print a completion script for a shell
    Completion {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    Man,
}

#[derive(Debug, Args)]
struct Check {
    /// The proxy's config_dump: a file, "-" for standard input, or the admin endpoint itself
    /// (http://127.0.0.1:15000, unix:/path), which is then asked for the other inputs too
    #[arg(required = true, value_name = "CONFIG_DUMP")]
    config_dump: Option<OsString>,
    /// The answer of /clusters, as text or JSON: a file or "-"
    #[arg(long, value_name = "FILE")]
    clusters: Option<OsString>,
    /// The answer of /stats, as text: a file or "-"
    #[arg(long, value_name = "FILE")]
    stats: Option<OsString>,
    /// The form of the report
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
    /// The least severity that makes the exit status 1
    #[arg(long, value_enum, value_name = "SEVERITY", default_value_t = Severity::Error)]
    failure_threshold: Severity,
    /// A code to leave out, such as SG0307; may be repeated
    #[arg(long, value_name = "CODE")]
    suppress: Vec<Code>,
    /// How long an answer of the admin endpoint may take, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
    /// The largest input, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=65536))]
    limit: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people
    Text,
    /// For programs; doctor/schema/report.json describes it
    Json,
}

/// Why there is no report.
enum Failure {
    Usage(String),
    Input(String),
}

/// Runs the doctor with these arguments, of which the first is the program's name.
pub fn run(
    arguments: impl IntoIterator<Item = OsString>,
    stdin: &mut dyn Read,
    stdout: &mut dyn Write,
    stderr: &mut dyn Write,
) -> Exit {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            let wrong = error.use_stderr();
            say(if wrong { stderr } else { stdout }, &error.render().to_string());
            return if wrong { Exit::Usage } else { Exit::Clean };
        }
    };
    match cli.command {
        Some(Command::Completion { shell }) => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "stale-guard-doctor", &mut script);
            say(stdout, &String::from_utf8_lossy(&script));
            return Exit::Clean;
        }
        Some(Command::Man) => {
            let mut page = Vec::new();
            // Writing into memory does not fail.
            let _ = clap_mangen::Man::new(Cli::command()).render(&mut page);
            say(stdout, &String::from_utf8_lossy(&page));
            return Exit::Clean;
        }
        None => {}
    }
    match report(&cli.check, stdin) {
        Ok(report) => {
            let text = match cli.check.output {
                Output::Text => report.to_string(),
                Output::Json => report.json() + "\n",
            };
            say(stdout, &text);
            if report.reaches(cli.check.failure_threshold) { Exit::Found } else { Exit::Clean }
        }
        Err(Failure::Usage(message)) => {
            say(stderr, &format!("error: {message}\n"));
            Exit::Usage
        }
        Err(Failure::Input(message)) => {
            say(stderr, &format!("error: {message}\n"));
            Exit::Unreadable
        }
    }
}

fn report(check: &Check, stdin: &mut dyn Read) -> Result<Report, Failure> {
    let source = |argument: &OsString| Source::parse(argument).map_err(Failure::Usage);
    let config_dump = check.config_dump.as_ref().map(source).transpose()?;
    let config_dump = config_dump.ok_or_else(|| Failure::Usage("CONFIG_DUMP is missing".to_owned()))?;
    let clusters = check.clusters.as_ref().map(source).transpose()?;
    let stats = check.stats.as_ref().map(source).transpose()?;
    let others = [&clusters, &stats].into_iter().flatten();
    if others.clone().any(Source::is_admin) {
        return Err(Failure::Usage(
            "--clusters and --stats take files; name the admin endpoint as CONFIG_DUMP".to_owned(),
        ));
    }
    if others.chain([&config_dump]).filter(|source| **source == Source::Stdin).count() > 1 {
        return Err(Failure::Usage("only one input can be standard input".to_owned()));
    }
    let limits = Limits { bytes: check.limit * 1024 * 1024, time: Duration::from_secs(check.timeout) };
    let failed = |error: crate::fetch::FetchError| Failure::Input(error.to_string());
    let (dump, mut clusters_text, mut stats_text) = match config_dump.is_admin() {
        true => {
            let answers = config_dump.ask(limits).map_err(failed)?;
            (answers.config_dump, Some(answers.clusters), Some(answers.stats))
        }
        false => (config_dump.read(stdin, limits).map_err(failed)?, None, None),
    };
    for (source, text) in [(&clusters, &mut clusters_text), (&stats, &mut stats_text)] {
        if let Some(source) = source {
            *text = Some(source.read(stdin, limits).map_err(failed)?);
        }
    }
    let input = Input { config_dump: &dump, clusters: clusters_text.as_deref(), stats: stats_text.as_deref() };
    let report = examine(input).map_err(|error| Failure::Input(error.to_string()))?;
    Ok(report.without(&check.suppress))
}

/// A reader that has gone away (`| head`) is no failure of the examination.
fn say(to: &mut dyn Write, text: &str) {
    let _ = to.write_all(text.as_bytes()).and_then(|()| to.flush());
}

// === impl Exit ===

impl Exit {
    /// As a number.
    #[must_use]
    pub fn status(self) -> u8 {
        match self {
            Self::Clean => 0,
            Self::Found => 1,
            Self::Usage => 2,
            Self::Unreadable => 3,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        exit.status().into()
    }
}
