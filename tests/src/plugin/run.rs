//! What a run of CRIU did: its status, the calls of hooks, all messages.

use std::process::ExitStatus;

/// See the [module](self).
#[derive(Debug)]
pub struct Run {
    /// How it ended.
    pub status: ExitStatus,
    /// What the host says: a line for each call of a hook, and one for each violation.
    pub lines: Vec<String>,
    /// All messages, with their levels: 1 errors, 2 warnings, 3 information, 4 details.
    pub log: Vec<(u32, String)>,
    /// What CRIU prints at its level.
    pub stderr: String,
}

/// Lines of the host that a plugin is to blame for.
const BLAME: [&str; 4] = ["left ", "leak ", "violation ", "BUG "];

impl Run {
    pub(super) fn parse_log(text: &str) -> Vec<(u32, String)> {
        let message = |line: &str| {
            let mut words = line.splitn(3, ' ');
            let level = words.next()?.parse().ok()?;
            Some((level, words.nth(1)?.to_owned()))
        };
        text.lines().filter_map(message).collect()
    }

    /// The lines that begin with a word.
    pub fn said(&self, word: &str) -> Vec<&str> {
        let lines = self.lines.iter().map(String::as_str);
        lines.filter(|line| line.split(' ').next() == Some(word)).collect()
    }

    /// The results of a hook, in the order of its calls.
    pub fn results(&self, hook: &str) -> Vec<i32> {
        let result = |line: &str| line.split(" = ").nth(1)?.split(' ').next()?.parse().ok();
        self.said(hook).into_iter().filter_map(result).collect()
    }

    /// What the plugin has left behind, or done that it must not do.
    pub fn blame(&self) -> Vec<&str> {
        let is_blame = |line: &&str| BLAME.iter().any(|word| line.starts_with(word));
        self.lines.iter().map(String::as_str).filter(is_blame).collect()
    }

    /// The plugin's messages of this level and of those that are worse.
    pub fn messages(&self, level: u32) -> Vec<&str> {
        let of_criu = |text: &str| text.starts_with("Error (criu)");
        let worse = self.log.iter().filter(|(of, text)| *of <= level && !of_criu(text));
        worse.map(|(_, text)| text.as_str()).collect()
    }

    /// It worked, nothing was left behind and nobody complained.
    #[track_caller]
    pub fn assert_good(&self) {
        assert!(self.status.success(), "{self:#?}");
        assert_eq!(self.blame(), [""; 0], "{self:#?}");
        assert_eq!(self.messages(2), [""; 0], "{self:#?}");
    }

    /// It failed and said why, in a message of the plugin that has all these words; nothing was
    /// left behind.
    #[track_caller]
    pub fn assert_failed(&self, words: &[&str]) {
        assert!(self.status.code().is_some_and(|code| code != 0), "{self:#?}");
        assert_eq!(self.blame(), [""; 0], "{self:#?}");
        let errors = self.messages(1);
        let has_all = |text: &&str| words.iter().all(|word| text.contains(word));
        assert!(errors.iter().any(has_all), "no message with {words:?}: {self:#?}");
    }
}
