//! The common end of every benchmark: options, medians, and how figures are printed.

use std::process::ExitCode;

/// What every benchmark program takes on its command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// One JSON object in place of the lines.
    pub json: bool,
    /// Make the claim fail on purpose.
    pub sabotage: bool,
    /// Runs to take the median of; each program has its own default.
    pub rounds: Option<usize>,
    /// Folder for histograms, where a program has any.
    pub save: Option<String>,
}

impl Options {
    /// Reads the command line.
    ///
    /// # Errors
    /// One line that names what was given and what is allowed.
    pub fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self::default();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--json" => options.json = true,
                "--sabotage" => options.sabotage = true,
                "--rounds" => {
                    let given = words.next().unwrap_or_default();
                    let rounds = given.parse().ok().filter(|n| (1..=99).contains(n));
                    options.rounds = Some(rounds.ok_or_else(|| {
                        format!("--rounds: '{given}' given, a number from 1 to 99 is wanted")
                    })?);
                }
                "--save" => {
                    let folder = words.next().filter(|folder| !folder.is_empty());
                    options.save = Some(folder.ok_or("--save: a folder is wanted")?);
                }
                // What `cargo bench` adds on its own.
                "--bench" => {}
                other => {
                    return Err(format!(
                        "unknown argument '{other}'; allowed: --json, --sabotage, --rounds N, --save DIR"
                    ));
                }
            }
        }
        Ok(options)
    }

    /// Reads this process's command line; a wrong one ends it with status 2.
    pub fn from_command_line() -> Self {
        Self::parse(std::env::args().skip(1)).unwrap_or_else(|problem| {
            eprintln!("{problem}");
            std::process::exit(2)
        })
    }
}

/// Figures in the order in which they were measured.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    rows: Vec<(String, f64, String)>,
}

impl Figures {
    /// Adds one figure. Names end in `_cost_ratio` where lower is better than the peer, in
    /// `_rate_ratio` where higher is.
    pub fn add(&mut self, name: &str, value: f64, unit: &str) {
        self.rows.push((name.to_owned(), value, unit.to_owned()));
    }

    /// The lines, or the JSON object.
    pub fn render(&self, json: bool) -> String {
        let mut text = String::new();
        if json {
            let rows: Vec<String> = self
                .rows
                .iter()
                .map(|(name, value, unit)| {
                    format!("\"{name}\": {{\"value\": {value:.4}, \"unit\": \"{unit}\"}}")
                })
                .collect();
            text = format!("{{{}}}\n", rows.join(", "));
        } else {
            for (name, value, unit) in &self.rows {
                text.push_str(&format!("{name}\t{value:.3}\t{unit}\n"));
            }
        }
        text
    }

    /// Prints them.
    pub fn print(&self, options: &Options) {
        print!("{}", self.render(options.json));
    }
}

/// The whole of a benchmark program: reads the command line, measures, prints; one line for what
/// went wrong, and status 1.
pub fn program(name: &str, measure: impl FnOnce(&Options) -> Result<Figures, String>) -> ExitCode {
    let options = Options::from_command_line();
    match measure(&options) {
        Ok(figures) => {
            figures.print(&options);
            ExitCode::SUCCESS
        }
        Err(problem) => {
            eprintln!("{name}: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// The median; NaN of nothing.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let half = sorted.len() / 2;
    match (
        sorted.get(half),
        sorted.len() % 2,
        half.checked_sub(1).and_then(|h| sorted.get(h)),
    ) {
        (Some(upper), 0, Some(lower)) => f64::midpoint(*lower, *upper),
        (Some(middle), 1, _) => *middle,
        _ => f64::NAN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < 1e-12);
        assert!((median(&[4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-12);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn prints_lines_and_json() {
        let mut figures = Figures::default();
        figures.add("forward_mpps", 5.5, "Mpps");
        assert_eq!(figures.render(false), "forward_mpps\t5.500\tMpps\n");
        let json = figures.render(true);
        assert_eq!(
            json,
            "{\"forward_mpps\": {\"value\": 5.5000, \"unit\": \"Mpps\"}}\n"
        );
    }

    #[test]
    fn refuses_unknown_words() {
        let words = ["--fast".to_owned()];
        let problem = Options::parse(words.into_iter()).unwrap_err();
        assert!(
            problem.contains("'--fast'") && problem.contains("--sabotage"),
            "{problem}"
        );
    }
}
