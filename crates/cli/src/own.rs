//! `tenure completions` and `tenure man`: from the same definitions that arguments are read by.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Command;
use clap_complete::Shell;

use crate::exit::Failure;

/// Print completions for a shell
///
/// For bash, for example: tenure completions bash >/etc/bash_completion.d/tenure
#[derive(clap::Args)]
pub(crate) struct CompletionsArgs {
    /// Which shell
    shell: Shell,
}

/// Write manual pages
///
/// One for each command: tenure.1, tenure-run.1 and so on.
#[derive(clap::Args)]
pub(crate) struct ManArgs {
    /// The directory that they go to, such as /usr/local/share/man/man1; it must exist
    directory: PathBuf,
}

pub(crate) fn completions(args: &CompletionsArgs, mut program: Command) -> ExitCode {
    clap_complete::generate(args.shell, &mut program, NAME, &mut std::io::stdout());
    ExitCode::SUCCESS
}

pub(crate) fn man(args: &ManArgs, program: Command) -> Result<ExitCode, Failure> {
    clap_mangen::generate_to(program, &args.directory).map_err(|error| {
        Failure::system(&format!("cannot write to {}", args.directory.display()), &error)
    })?;
    Ok(ExitCode::SUCCESS)
}

const NAME: &str = "tenure";
