//! The table and the JSON.

use std::{fmt::Write, io};

use serde_json::{Value, json};

use super::{
    CaseResult,
    cases::{Bound, Target},
    measure::{CPU, HAND_OFF, PEAK, READY, SPEED, Sample},
    options::Options,
};

const METRICS: [&str; 5] = [SPEED, CPU, PEAK, READY, HAND_OFF];

/// A program's runs in a case.
#[derive(Debug)]
pub struct Row {
    /// The program and how it was run.
    pub name: String,
    /// What was measured.
    pub samples: Vec<Sample>,
    /// Why a run failed; there are no more after it.
    pub error: Option<String>,
}

impl Row {
    /// Of no runs yet.
    pub fn new(name: &str) -> Self {
        Row { name: name.to_owned(), samples: Vec::new(), error: None }
    }

    /// The middle value of a metric.
    pub fn median(&self, metric: &str) -> Option<f64> {
        let values = self.samples.iter().filter_map(|sample| sample.0.get(metric).copied());
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let upper = *values.get(values.len() / 2)?;
        if values.len() % 2 == 1 {
            return Some(upper);
        }
        Some(f64::midpoint(*values.get(values.len() / 2 - 1)?, upper))
    }
}

/// What became of a target.
#[derive(Debug)]
pub struct Verdict {
    /// What was to be reached.
    pub target: String,
    /// The value that counts, if all of it was measured.
    pub value: Option<f64>,
    /// What it had to be.
    pub limit: Option<f64>,
    /// Whether it is.
    pub reached: Option<bool>,
}

impl Verdict {
    /// Judges.
    pub fn of(target: &Target, rows: &[Row]) -> Self {
        let median = |index: usize| rows.get(index).and_then(|row| row.median(target.metric));
        let value = median(target.row);
        let limit = match target.against {
            None => Some(target.factor),
            Some(other) => median(other).map(|other| other * target.factor),
        };
        let reached = value.zip(limit).map(|(value, limit)| match target.bound {
            Bound::AtLeast => value >= limit,
            Bound::AtMost => value <= limit,
        });
        Verdict { target: target.describe(rows), value, limit, reached }
    }

    fn word(&self) -> &'static str {
        match self.reached {
            Some(true) => "yes",
            Some(false) => "NO",
            None => "not measured",
        }
    }
}

/// Everything as text.
pub fn table(results: &[CaseResult]) -> String {
    let mut out = String::new();
    for result in results {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "\n{}. {}", result.id, result.title);
        let _ = write!(out, "   {:<46}", "");
        for metric in METRICS {
            let _ = write!(out, " {metric:>13}");
        }
        out.push('\n');
        for row in &result.rows {
            let _ = write!(out, "   {:<46}", row.name);
            if let Some(error) = &row.error {
                let _ = write!(out, " failed: {}", error.replace('\n', " "));
            } else {
                for metric in METRICS {
                    let _ = match row.median(metric) {
                        Some(value) => write!(out, " {value:>13.3}"),
                        None => write!(out, " {:>13}", "-"),
                    };
                }
            }
            out.push('\n');
        }
        for verdict in &result.verdicts {
            let number = |value: Option<f64>| value.map_or("-".to_owned(), |v| format!("{v:.3}"));
            let _ = writeln!(
                out,
                "   target: {:<70} limit {:>8} got {:>8} reached: {}",
                verdict.target,
                number(verdict.limit),
                number(verdict.value),
                verdict.word()
            );
        }
    }
    out
}

/// Everything as JSON, every run of it.
pub fn json(options: &Options, results: &[CaseResult]) -> io::Result<String> {
    let cases: Vec<Value> = results.iter().map(case_json).collect();
    let all = json!({
        "size": options.size(),
        "runs": options.runs(),
        "content": options.content.to_string(),
        "cases": cases,
    });
    Ok(serde_json::to_string_pretty(&all)? + "\n")
}

fn case_json(result: &CaseResult) -> Value {
    let row_json = |row: &Row| {
        let medians: serde_json::Map<String, Value> = METRICS
            .iter()
            .filter_map(|metric| Some(((*metric).to_owned(), json!(row.median(metric)?))))
            .collect();
        let samples: Vec<_> = row.samples.iter().map(|sample| json!(sample.0)).collect();
        json!({"name": row.name, "median": medians, "runs": samples, "error": row.error})
    };
    let verdict_json = |verdict: &Verdict| {
        json!({
            "target": verdict.target,
            "limit": verdict.limit,
            "value": verdict.value,
            "reached": verdict.reached,
        })
    };
    json!({
        "case": result.id.to_string(),
        "title": result.title,
        "rows": result.rows.iter().map(row_json).collect::<Vec<_>>(),
        "targets": result.verdicts.iter().map(verdict_json).collect::<Vec<_>>(),
    })
}
