//! Instructions per packet, buffer or value, as valgrind counts them (`benches/instructions.rs`),
//! beside the recorded counts: more than two in a hundred above its record, and a figure fails.
//!
//! Counts depend on the compiler. Under another one than the record's they are printed and not
//! judged.
#![forbid(unsafe_code)]

use pollux_benches::datapath::ROUND;
use pollux_benches::figures::{Figures, Options};
use serde_json::Value;
use std::process::{Command, ExitCode, Stdio};

/// Name and count per moved thing; the compiler stands in the first line.
const RECORD: &str = include_str!("../../instructions.tsv");
/// How much more than recorded passes.
const SLACK: f64 = 1.02;

/// The benchmark's own lines, one JSON object each.
fn count(sabotage: bool) -> Result<String, String> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args("bench --locked --quiet -p pollux-benches --features gungraun".split(' '))
        .args("--bench instructions -- --output-format=json --nosummary".split(' '))
        .stdin(Stdio::null())
        .stderr(Stdio::inherit());
    if sabotage {
        cargo.env("POLLUX_SABOTAGE", "1");
    } else {
        cargo.env_remove("POLLUX_SABOTAGE");
    }
    let output = cargo.output().map_err(|e| format!("cargo bench: {e}"))?;
    if !output.status.success() {
        return Err(format!(
            "cargo bench ended with {}; it needs valgrind (apt-get install valgrind) and \
             gungraun-runner of the version in Cargo.lock, which scripts/bench installs",
            output.status
        ));
    }
    String::from_utf8(output.stdout).map_err(|e| format!("cargo bench: {e}"))
}

/// Instructions read, of all parts of one benchmark.
fn total(profile: &Value) -> Option<f64> {
    profile["data"]["total"]["metrics"]["Ir"]["values"]["new"].as_f64()
}

/// Figures out of the lines.
fn figures(lines: &str) -> Result<Vec<(String, f64)>, String> {
    let mut rows = Vec::new();
    for line in lines.lines().filter(|line| line.starts_with('{')) {
        let row: Value = serde_json::from_str(line).map_err(|e| format!("gungraun: {e}"))?;
        let (Some(function), Some(id), Some(count)) = (
            row["function_name"].as_str(),
            row["id"].as_str(),
            total(&row["profiles"][0]),
        ) else {
            return Err(format!("gungraun wrote a line without a count: {line}"));
        };
        rows.push((
            format!("{function}_instructions_{id}"),
            count / ROUND as f64,
        ));
    }
    if rows.is_empty() {
        return Err("gungraun counted nothing".into());
    }
    Ok(rows)
}

/// What is wrong with the figures, by the record.
fn judged(rows: &[(String, f64)], record: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let recorded: Vec<(&str, f64)> = record
        .lines()
        .skip(1)
        .filter_map(|line| line.split_once('\t'))
        .filter_map(|(name, value)| Some((name, value.parse().ok()?)))
        .collect();
    for (name, limit) in &recorded {
        match rows.iter().find(|(row, _)| row == name) {
            None => wrong.push(format!("{name} is recorded and was not counted")),
            Some((_, count)) if *count > limit * SLACK => wrong.push(format!(
                "{name}: {count:.2}, recorded {limit:.2}, 2 % more pass"
            )),
            Some(_) => {}
        }
    }
    for (name, _) in rows {
        if !recorded.iter().any(|(row, _)| row == name) {
            wrong.push(format!("{name} has no record in benches/instructions.tsv"));
        }
    }
    wrong
}

fn compiler() -> String {
    let output = Command::new("rustc").arg("--version").output();
    let text = output.map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&text).trim().to_owned()
}

fn run(options: &Options) -> Result<ExitCode, String> {
    let rows = figures(&count(options.sabotage)?)?;
    let mut printed = Figures::default();
    for (name, count) in &rows {
        printed.add(name, *count, "instructions");
    }
    printed.print(options);
    let recorded = RECORD.lines().next().unwrap_or_default();
    let here = compiler();
    if recorded != here {
        eprintln!("instructions: not judged; the record is of '{recorded}', this is '{here}'");
        return Ok(ExitCode::SUCCESS);
    }
    let wrong = judged(&rows, RECORD);
    for line in &wrong {
        eprintln!("instructions: {line}");
    }
    Ok(if wrong.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn main() -> ExitCode {
    run(&Options::from_command_line()).unwrap_or_else(|problem| {
        eprintln!("instructions: {problem}");
        ExitCode::FAILURE
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"function_name":"rxtx","id":"b32","profiles":[{"data":{"parts":[],"total":{"metrics":{"Ir":{"values":{"new":51200}}}}}}]}"#;

    #[test]
    fn a_line_is_a_figure_per_moved_thing() {
        let rows = figures(&format!("noise\n{LINE}\n")).unwrap();
        assert_eq!(rows, [("rxtx_instructions_b32".to_owned(), 100.0)]);
        figures("{}").unwrap_err();
        figures("").unwrap_err();
    }

    #[test]
    fn more_than_recorded_absent_and_unrecorded_figures_fail() {
        let rows = |count| vec![("rxtx_instructions_b32".to_owned(), count)];
        let record = "rustc\nrxtx_instructions_b32\t100.0\n";
        assert!(judged(&rows(101.9), record).is_empty());
        assert!(judged(&rows(50.0), record).is_empty());
        assert_eq!(judged(&rows(102.1), record).len(), 1);
        assert_eq!(judged(&rows(1.0), "rustc\n").len(), 1);
        assert_eq!(judged(&[], record).len(), 1);
    }
}
