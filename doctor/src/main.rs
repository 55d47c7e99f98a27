//! The command line of the doctor: see `stale-guard-doctor --help` and `docs/doctor.md`.

use std::io::{stderr, stdin, stdout};
use std::process::ExitCode;

fn main() -> ExitCode {
    stale_guard_doctor::cli::run(std::env::args_os(), &mut stdin(), &mut stdout(), &mut stderr()).into()
}
