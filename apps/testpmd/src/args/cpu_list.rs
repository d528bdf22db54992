//! Lists of CPU numbers: `0,2-4`.

use std::str::FromStr;

/// CPUs in the order given, each once.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct CpuList(pub Vec<usize>);

/// A list longer than this is a slip of the hand, e.g. `0-99999999`.
const MOST: usize = 4096;

impl FromStr for CpuList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const FORM: &str = "give CPU numbers and ranges with commas between, e.g. 0,2-4";
        let number = |t: &str| -> Result<usize, String> {
            t.trim()
                .parse::<usize>()
                .map_err(|_| format!("'{t}' is no CPU number; {FORM}"))
        };
        let mut cpus = Vec::new();
        for part in text.split(',') {
            let (from, to) = match part.split_once('-') {
                Some((a, b)) => (number(a)?, number(b)?),
                None => {
                    let n = number(part)?;
                    (n, n)
                }
            };
            if from > to {
                return Err(format!("the range {part} runs backwards; give {to}-{from}"));
            }
            if to - from >= MOST || cpus.len() >= MOST {
                return Err(format!("more than {MOST} CPUs; {FORM}"));
            }
            for cpu in from..=to {
                if !cpus.contains(&cpu) {
                    cpus.push(cpu);
                }
            }
        }
        Ok(Self(cpus))
    }
}
