//! Man pages and completions, as the program writes them and as other programs read them.
#![forbid(unsafe_code)]

use std::{
    fs, io,
    io::Write,
    path::Path,
    process::{Command, Output, Stdio},
};

use vramstream_tests::streamer::Program;

fn generate(words: &[&str]) -> io::Result<Output> {
    Program::under_test()?.command().arg("generate").args(words).output()
}

fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    found.is_ok_and(|output| output.status.success())
}

#[test]
fn every_page_can_be_set_without_a_warning() -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    let all = dir.path().to_string_lossy().into_owned();
    assert!(generate(&["man", "--all", &all])?.status.success());
    let mut pages = 0;
    for entry in fs::read_dir(dir.path())? {
        let path = entry?.path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let one = generate(&["man", &name])?;
        assert_eq!(one.stdout, fs::read(&path)?, "{name}");
        set(&path, &name)?;
        pages += 1;
    }
    assert!(pages >= 14, "{pages} pages");
    Ok(())
}

/// With groff, which comes with `man`. (What else a page must have, the program's own tests look at.)
fn set(path: &Path, name: &str) -> io::Result<()> {
    if !has("groff") {
        eprintln!("no groff: {name} was not set");
        return Ok(());
    }
    let output =
        Command::new("groff").args(["-ww", "-man", "-Tutf8", "-P-cbou"]).arg(path).output()?;
    let warnings = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && warnings.is_empty(), "{name}: {warnings}");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains(name) && text.contains("SEE ALSO"), "{text}");
    Ok(())
}

#[test]
fn a_page_that_does_not_exist_is_an_error_with_those_that_do() -> io::Result<()> {
    let output = generate(&["man", "nothing"])?;
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("nothing") && said.contains("vramstream-capture"), "{said}");
    assert_eq!(generate(&["completions", "cmd.exe"])?.status.code(), Some(2));
    Ok(())
}

#[test]
fn bash_completes_commands_and_flags() -> io::Result<()> {
    let script = generate(&["completions", "bash"])?.stdout;
    let complete = |words: &str| -> io::Result<String> {
        let mut bash = Command::new("bash")
            .args(["--norc", "-c"])
            .arg(format!(
                "eval \"$(cat)\"; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
                 _vramstream vramstream \"${{COMP_WORDS[-1]}}\" \"${{COMP_WORDS[-2]}}\"; echo \"${{COMPREPLY[@]}}\""
            ))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        bash.stdin.take().unwrap().write_all(&script)?;
        let output = bash.wait_with_output()?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    assert_eq!(complete("vramstream doc")?, "doctor");
    assert_eq!(complete("vramstream doctor --cr")?, "--criu --criu-clients");
    assert_eq!(complete("vramstream capture --compress a")?, "auto");
    Ok(())
}

#[test]
fn zsh_and_fish_understand_theirs() -> io::Result<()> {
    for shell in ["zsh", "fish"] {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("completions");
        let script = generate(&["completions", shell])?.stdout;
        let text = String::from_utf8_lossy(&script);
        for word in ["doctor", "images-dir", "criu-clients"] {
            assert!(text.contains(word), "{shell}: {word}");
        }
        fs::write(&path, script)?;
        if has(shell) {
            let output = Command::new(shell).arg("-n").arg(&path).output()?;
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && said.is_empty(), "{shell}: {said}");
        } else {
            eprintln!("no {shell}: its completions were not read");
        }
    }
    Ok(())
}
