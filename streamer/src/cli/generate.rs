//! `vramstream generate`: man pages and completions, for who packages the program.

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand};
use clap_complete::Shell;

use crate::{
    error::{Error, Result},
    manual::{self, Page},
};

/// Options of `generate`.
#[derive(Debug, Args)]
pub struct Generate {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Print a man page
    Man {
        /// A command (capture, bench-run, ...) or plugin [default: the program]
        page: Option<String>,
        /// Write all pages into this directory instead
        #[arg(long, value_name = "DIR", conflicts_with = "page")]
        all: Option<PathBuf>,
    },
    /// Print the completions of a shell
    Completions {
        /// The shell
        shell: Shell,
    },
}

pub(super) fn generate(generate: Generate) -> Result<()> {
    match generate.what {
        What::Man { all: Some(dir), .. } => write_all(&dir),
        What::Man { page, all: None } => print(&render(&named(page.as_deref())?)?),
        What::Completions { shell } => print(&manual::completions(shell)),
    }
}

fn named(name: Option<&str>) -> Result<Page> {
    let name = name.unwrap_or("vramstream");
    Page::named(name).ok_or_else(|| {
        let all: Vec<_> = Page::all().iter().map(|page| page.name().to_owned()).collect();
        Error::Usage(format!("there is no page {name}; there are {}", all.join(", ")))
    })
}

fn render(page: &Page) -> Result<Vec<u8>> {
    page.render().map_err(Error::io(|| format!("render {}", page.name())))
}

fn write_all(dir: &Path) -> Result<()> {
    for page in Page::all() {
        let path = dir.join(page.file_name());
        let written = fs::write(&path, render(&page)?);
        written.map_err(Error::io(|| format!("write {}", path.display())))?;
    }
    Ok(())
}

fn print(bytes: &[u8]) -> Result<()> {
    let mut stdout = io::stdout().lock();
    let printed = stdout.write_all(bytes).and_then(|()| stdout.flush());
    printed.map_err(Error::io(|| "write to standard output"))
}
