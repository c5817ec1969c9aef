//! An inspection as a person reads it.

use std::fmt;

use super::{Inspection, Totals};

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |f: &mut fmt::Formatter<'_>, what: &str, value: &dyn fmt::Display| {
            writeln!(f, "{what:<11}{value}")
        };
        match self.version {
            Some(version) => row(f, "format", &format_args!("{}, version {version}", self.format))?,
            None => row(f, "format", &self.format)?,
        }
        if let Some(image) = &self.image {
            row(f, "image", image)?;
        }
        row(f, "written by", &Plain(&self.writer))?;
        if let Some(created) = self.created_unix_ms {
            row(f, "created", &Time(created))?;
        }
        let shards: Vec<_> = self.shards.iter().map(ToString::to_string).collect();
        row(f, "shards", &format_args!("{} ({} bytes)", shards.len(), shards.join(" + ")))?;
        match self.superseded {
            0 => row(f, "files", &self.files.len())?,
            n => row(f, "files", &format_args!("{}, and {n} written again", self.files.len()))?,
        }
        row(f, "size", &format_args!("{} bytes, {}", self.total.raw_bytes, Stored(&self.total)))?;
        let verified = if self.payloads_verified { "every byte" } else { "the indexes only" };
        row(f, "verified", &verified)?;

        writeln!(f, "\n{:<6} {:>10} {:>16} {:>16}", "codec", "chunks", "bytes", "stored")?;
        let codecs = &self.codecs;
        for (name, Totals { chunks, raw_bytes, stored_bytes }) in
            [("raw", codecs.raw), ("zero", codecs.zero), ("lz4", codecs.lz4)]
        {
            writeln!(f, "{name:<6} {chunks:>10} {raw_bytes:>16} {stored_bytes:>16}")?;
        }

        let names: Vec<_> = self.files.iter().map(|file| Plain(&file.name).to_string()).collect();
        let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0).max(4);
        writeln!(
            f,
            "\n{:<width$} {:>16} {:>16} {:>10} crc-32",
            "file", "bytes", "stored", "chunks"
        )?;
        for (name, file) in names.iter().zip(&self.files) {
            let Totals { chunks, raw_bytes, stored_bytes } = file.totals;
            let crc = &file.crc32;
            writeln!(f, "{name:<width$} {raw_bytes:>16} {stored_bytes:>16} {chunks:>10} {crc}")?;
        }
        Ok(())
    }
}

/// Text that came from an image, without what a terminal would act on.
struct Plain<'a>(&'a str);

impl fmt::Display for Plain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| {
            if c.is_control() { write!(f, "{}", c.escape_default()) } else { write!(f, "{c}") }
        })
    }
}

/// What is stored of so many bytes.
struct Stored<'a>(&'a Totals);

impl fmt::Display for Stored<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stored in {}", self.0.stored_bytes)?;
        match self.0.ratio() {
            Some(ratio) => write!(f, " (ratio {ratio:.2})"),
            None => Ok(()),
        }
    }
}

/// A time in UTC, from milliseconds since 1970.
struct Time(u64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DAY: u64 = 24 * 60 * 60;
        let seconds = self.0 / 1000;
        let (mut days, of_day) = (seconds / DAY, seconds % DAY);
        // The calendar repeats after 400 years; that bounds the loops below.
        const CYCLE_DAYS: u64 = 146_097;
        let mut year = 1970 + days / CYCLE_DAYS * 400;
        days %= CYCLE_DAYS;
        let leap = |year: u64| {
            year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
        };
        while days >= 365 + u64::from(leap(year)) {
            days -= 365 + u64::from(leap(year));
            year += 1;
        }
        let february = 28 + u64::from(leap(year));
        let mut month = 1;
        for len in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
            if days < len {
                break;
            }
            days -= len;
            month += 1;
        }
        let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
        let day = days + 1;
        write!(f, "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        // As `date -u -d @N` prints them.
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (951_868_800, "2000-03-01 00:00:00 UTC"),
            (1_704_067_199, "2023-12-31 23:59:59 UTC"),
            (4_107_542_399, "2100-02-28 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
            (13_574_563_200, "2400-02-29 00:00:00 UTC"),
        ] {
            assert_eq!(Time(seconds * 1000).to_string(), text);
        }
        // Any number has a time.
        let _ = Time(u64::MAX).to_string();
    }

    #[test]
    fn a_name_does_not_reach_the_terminal_as_a_command() {
        assert_eq!(Plain("a\x1b[2J\n.img").to_string(), "a\\u{1b}[2J\\n.img");
        assert_eq!(Plain("ü-1.img").to_string(), "ü-1.img");
    }
}
