//! Settings behind a device's name: `key=value` with commas between.
//!
//! A value that holds a comma, a quote or a blank at an end is written in double quotes, in which
//! `\"` and `\\` stand for `"` and `\`. One grammar for every program that names devices.

/// One setting of a device string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// What is set.
    pub key: String,
    /// To what, quotes removed.
    pub value: String,
}

/// Splits `key=value,...`; the empty string is no setting.
///
/// # Errors
/// What is wrong and where, in one line.
pub fn split(text: &str) -> Result<Vec<Setting>, String> {
    let mut found: Vec<Setting> = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (key, after) = rest
            .split_once('=')
            .filter(|(key, _)| !key.contains([',', '"']))
            .ok_or_else(|| {
                let word = rest.split(',').next().unwrap_or(rest);
                format!("{word:?} has no value; write KEY=VALUE, with commas between")
            })?;
        let key = key.trim();
        if key.is_empty() {
            return Err(format!(
                "a value without a key at {:?}; write KEY=VALUE",
                clip(rest)
            ));
        }
        let (value, tail) = value(after.trim_start()).map_err(|e| format!("{key}: {e}"))?;
        if found.iter().any(|setting| setting.key == key) {
            return Err(format!("{key} is given twice; give it once"));
        }
        found.push(Setting {
            key: key.to_owned(),
            value,
        });
        let tail = tail.trim_start();
        rest = match tail.strip_prefix(',') {
            Some(next) => {
                let next = next.trim_start();
                if next.is_empty() {
                    return Err("a comma at the end; leave it out".to_owned());
                }
                next
            }
            None if tail.is_empty() => tail,
            None => {
                return Err(format!(
                    "{key}: {:?} behind the closing quote; write a comma",
                    clip(tail)
                ));
            }
        };
    }
    Ok(found)
}

/// One value, and what follows it.
fn value(text: &str) -> Result<(String, &str), String> {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find(',').unwrap_or(text.len());
        let (value, tail) = text.split_at_checked(end).unwrap_or((text, ""));
        if value.contains('"') {
            return Err(format!(
                "a quote inside {:?}; put the whole value in quotes, as in KEY=\"a,b\"",
                clip(value)
            ));
        }
        return Ok((value.trim_end().to_owned(), tail));
    };
    let mut value = String::new();
    let mut letters = quoted.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return Ok((value, quoted.get(at + 1..).unwrap_or_default())),
            '\\' => match letters.next() {
                Some((_, escaped @ ('"' | '\\'))) => value.push(escaped),
                _ => return Err("a backslash in quotes is written \\\\".to_owned()),
            },
            other => value.push(other),
        }
    }
    Err(format!("the quote before {:?} is not closed", clip(quoted)))
}

/// The start of a text, for messages.
fn clip(text: &str) -> &str {
    text.char_indices()
        .nth(24)
        .and_then(|(at, _)| text.get(..at))
        .unwrap_or(text)
}
