//! The man pages and the completions, made from the definitions of the command line.
//!
//! | file | what it is |
//! |---|---|
//! | here | which pages there are, and a page from its parts |
//! | `notes` | what a page says beside the flags: files, variables, examples |
//! | `variables` | the variables of the environment, once for all pages |
//! | `plugin` | the page of the CRIU plugin |
//!
//! There is a page for each command, also of those that are commands of commands. Hidden commands
//! have none.

mod notes;
mod plugin;
mod variables;

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::{
    Man,
    roff::{Inline, Roff, bold, italic, roman},
};

use self::notes::{Notes, Text};
use crate::cli::Cli;

/// What the pages are part of.
const MANUAL: &str = "vramstream manual";

/// A page.
#[derive(Debug, Clone)]
pub struct Page {
    name: String,
    section: &'static str,
    command: Option<Command>,
}

impl Page {
    /// All pages: the program's, those of its commands, and the plugin's.
    pub fn all() -> Vec<Page> {
        let mut program = Cli::command();
        program.build();
        let mut pages = Vec::new();
        add(&program, &mut pages);
        pages.push(Page { name: plugin::NAME.to_owned(), section: plugin::SECTION, command: None });
        pages
    }

    /// The page that a person means: `capture`, `bench-run`, `plugin`, or the whole name.
    pub fn named(name: &str) -> Option<Page> {
        let whole = format!("{}-{name}", Cli::command().get_name());
        Page::all().into_iter().find(|page| page.name == name || page.name == whole)
    }

    /// Its name, as for `man`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name of its file.
    pub fn file_name(&self) -> String {
        format!("{}.{}", self.name, self.section)
    }

    /// The command that it is about; the plugin is none.
    pub fn command(&self) -> Option<&Command> {
        self.command.as_ref()
    }

    /// What is in its file.
    pub fn render(&self) -> std::io::Result<Vec<u8>> {
        let mut page = Vec::new();
        let source = format!("vramstream {}", env!("CARGO_PKG_VERSION"));
        let Some(command) = &self.command else {
            plugin::render(&source, MANUAL).to_writer(&mut page)?;
            return Ok(page);
        };
        let man = Man::new(command.clone()).section(self.section).source(source).manual(MANUAL);
        man.render_title(&mut page)?;
        man.render_name_section(&mut page)?;
        man.render_synopsis_section(&mut page)?;
        man.render_description_section(&mut page)?;
        man.render_options_section(&mut page)?;
        if command.get_subcommands().any(|sub| !sub.is_hide_set()) {
            man.render_subcommands_section(&mut page)?;
        }
        let path = self.name.split_once('-').map_or("", |(_, path)| path);
        around(&Notes::of(path)).to_writer(&mut page)?;
        Ok(page)
    }
}

/// The completions of a shell.
pub fn completions(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    let mut program = Cli::command();
    let name = program.get_name().to_owned();
    clap_complete::generate(shell, &mut program, name, &mut script);
    script
}

fn add(command: &Command, pages: &mut Vec<Page>) {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    pages.push(Page { name, section: "1", command: Some(command.clone()) });
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        add(sub, pages);
    }
}

/// The sections beside those that are made from flags.
fn around(notes: &Notes) -> Roff {
    let mut roff = Roff::new();
    heading(&mut roff, "EXIT STATUS");
    for (status, meaning) in notes.exit_status {
        term(&mut roff, &[bold(*status)], meaning);
    }
    if !notes.environment.is_empty() {
        heading(&mut roff, "ENVIRONMENT");
        for variable in notes.environment.iter().flat_map(|names| variables::find(names)) {
            term(&mut roff, &variable.term(), &variable.meaning());
        }
    }
    if !notes.files.is_empty() {
        heading(&mut roff, "FILES");
        for (file, meaning) in notes.files {
            term(&mut roff, &[italic(*file)], meaning);
        }
    }
    if !notes.examples.is_empty() {
        heading(&mut roff, "EXAMPLES");
        examples(&mut roff, notes.examples);
    }
    heading(&mut roff, "SEE ALSO");
    paragraph(&mut roff, notes.see_also);
    roff
}

fn heading(roff: &mut Roff, title: &str) {
    roff.control("SH", [title]);
}

fn paragraph(roff: &mut Roff, text: &str) {
    roff.control("PP", []);
    roff.text([roman(text)]);
}

fn term(roff: &mut Roff, term: &[Inline], meaning: &str) {
    roff.control("TP", []);
    roff.text(term.to_vec());
    roff.text([roman(meaning)]);
}

fn examples(roff: &mut Roff, examples: &[(Text, Text)]) {
    for (meaning, lines) in examples {
        paragraph(roff, meaning);
        roff.control("PP", []);
        roff.control("RS", ["4"]);
        roff.control("nf", []);
        for line in lines.lines() {
            roff.text([roman(line)]);
        }
        roff.control("fi", []);
        roff.control("RE", []);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(page: &Page) -> String {
        // Hyphens are escaped so that they stay hyphens.
        String::from_utf8(page.render().unwrap()).unwrap().replace("\\-", "-")
    }

    #[test]
    fn there_is_a_page_for_every_command_and_the_plugin() {
        let names: Vec<_> = Page::all().iter().map(Page::file_name).collect();
        for name in [
            "vramstream.1",
            "vramstream-capture.1",
            "vramstream-doctor.1",
            "vramstream-commit-gate.1",
            "vramstream-bench.1",
            "vramstream-bench-run.1",
            "vramstream-plugin.7",
        ] {
            assert!(names.iter().any(|has| has == name), "{name}: {names:?}");
        }
        assert!(!names.iter().any(|name| name.contains("generate")), "{names:?}");
        let same = |a, b| assert_eq!(Page::named(a).unwrap().name(), b);
        same("capture", "vramstream-capture");
        same("bench-run", "vramstream-bench-run");
        same("vramstream", "vramstream");
        same("plugin", "vramstream-plugin");
        assert!(Page::named("generate").is_none() && Page::named("").is_none());
    }

    #[test]
    fn every_flag_is_in_its_page_and_every_page_has_every_section() {
        for page in Page::all() {
            let (name, text) = (page.name(), text(&page));
            let Some(command) = page.command() else { continue };
            for flag in command.get_arguments().filter(|flag| !flag.is_hide_set()) {
                let words = flag.get_long().map(|long| format!("--{long}"));
                let words = words.or_else(|| Some(flag.get_value_names()?.first()?.to_string()));
                let words = words.unwrap_or_else(|| panic!("{name}: {flag:?}"));
                assert!(text.contains(&words), "{name}: {words}\n{text}");
            }
            for heading in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "SEE ALSO"]
            {
                assert!(
                    text.contains(&format!(".SH {heading}\n"))
                        || text.contains(&format!(".SH \"{heading}\"\n")),
                    "{name}: {heading}\n{text}"
                );
            }
            assert!(text.contains(".SH EXAMPLES\n"), "{name} has no example");
        }
    }

    #[test]
    fn the_examples_are_commands_that_are_understood() {
        for page in Page::all().iter().filter(|page| page.command().is_some()) {
            let path = page.name().split_once('-').map_or("", |(_, path)| path);
            for (_, lines) in Notes::of(path).examples {
                let ours =
                    lines.lines().filter_map(|line| line.trim_start().strip_prefix("vramstream "));
                for line in ours {
                    let end = line.find(" &").or(line.find(" <")).or(line.find(" |"));
                    let words = line[..end.unwrap_or(line.len())].split_whitespace();
                    let parsed = Cli::command()
                        .try_get_matches_from(["vramstream"].into_iter().chain(words));
                    assert!(parsed.is_ok(), "{path}: {line}: {}", parsed.unwrap_err());
                }
            }
        }
    }

    #[test]
    fn the_page_of_the_plugin_has_every_variable_with_its_default() {
        let text = text(&Page::named("plugin").unwrap());
        let names = vramstream::topology::Variable::ALL.map(vramstream::topology::Variable::name);
        for name in names.into_iter().chain([vramstream::ring::BUDGET_VARIABLE]) {
            assert!(text.contains(name), "{name}\n{text}");
        }
        assert!(text.contains("64M for each GPU"), "{text}");
    }
}
