//! Draws what `scripts/bench fw-pages` measured, as SVG files for the documentation.
//!
//! Two pictures. Poll gaps: how often an lcore looked away how long, without a reclaim, with one
//! on the other CPU, and with one that it does itself. Steps: the two histograms that the cap of
//! 50,000 pages was argued with (time of one mailbox's release in the kernel, taken from the
//! discussion), beside the time that one mailbox costs here, with the cap and without; and below,
//! how long whole steps kept the control thread.
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

/// Histograms by name: upper edge in nanoseconds, count.
type Histograms = BTreeMap<String, Vec<(f64, f64)>>;

/// Time of one mailbox's release without a cap and with it: lower edge in nanoseconds, count
/// (netdev, 2024-06-19, message 20240619132827.51306-1).
const SOURCE_UNCAPPED: [(f64, f64); 7] = [
    (512.0, 287.0),
    (1024.0, 1332.0),
    (2048.0, 656.0),
    (4096.0, 2599.0),
    (8192.0, 4755.0),
    (16384.0, 7545.0),
    (32768.0, 2501.0),
];
const SOURCE_CAPPED: [(f64, f64); 3] = [(512.0, 346.0), (1024.0, 435.0), (8192.0, 1.0)];

const WIDTH: f64 = 760.0;
const LEFT: f64 = 70.0;
const PLOT: f64 = WIDTH - LEFT - 20.0;
const ROW: f64 = 130.0;

fn read(text: &str) -> Result<Histograms, String> {
    let mut histograms = Histograms::new();
    for (number, line) in text.lines().enumerate() {
        let mut words = line.split('\t');
        let mut next = || words.next();
        let parsed = (next(), next().map(str::parse), next().map(str::parse));
        let (Some(name), Some(Ok(edge)), Some(Ok(count))) = parsed else {
            return Err(format!("line {}: {line:?} is no bucket", number + 1));
        };
        histograms
            .entry(name.to_owned())
            .or_default()
            .push((edge, count));
    }
    Ok(histograms)
}

/// By powers of two: lower edge, count.
fn powers(buckets: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut sums: BTreeMap<i32, f64> = BTreeMap::new();
    for (edge, count) in buckets {
        *sums.entry(edge.max(1.0).log2().floor() as i32).or_default() += count;
    }
    sums.into_iter()
        .map(|(power, count)| (2f64.powi(power), count))
        .collect()
}

fn time(nanos: f64) -> String {
    match nanos {
        n if n < 1e3 => format!("{n:.0} ns"),
        n if n < 1e6 => format!("{:.0} us", n / 1e3),
        n if n < 1e9 => format!("{:.0} ms", n / 1e6),
        n => format!("{:.0} s", n / 1e9),
    }
}

/// One picture: rows below each other over one logarithmic axis of time.
struct Picture {
    body: String,
    height: f64,
    /// Powers of two at the axis' ends.
    ends: (f64, f64),
}

impl Picture {
    fn new(title: &str, ends: (f64, f64)) -> Self {
        let body = format!(
            "<text x=\"{LEFT}\" y=\"22\" font-size=\"15\" font-weight=\"bold\">{title}</text>\n"
        );
        Self {
            body,
            height: 40.0,
            ends,
        }
    }

    fn x(&self, nanos: f64) -> f64 {
        let (least, most) = self.ends;
        LEFT + PLOT * ((nanos.log2() - least) / (most - least)).clamp(0.0, 1.0)
    }

    /// A row of bars; counts are drawn as logarithms, so that one gap among millions is seen.
    fn row(&mut self, title: &str, note: &str, color: &str, buckets: &[(f64, f64)]) {
        let top = self.height + 18.0;
        let bottom = top + ROW - 40.0;
        let highest = buckets
            .iter()
            .map(|(_, count)| count.log10().max(0.0) + 0.3)
            .fold(1.0, f64::max);
        let text = &mut String::new();
        _ = writeln!(
            text,
            "<text x=\"{LEFT}\" y=\"{:.0}\" font-size=\"12\" font-weight=\"bold\">{title}</text>\
             <text x=\"{:.0}\" y=\"{:.0}\" font-size=\"11\" text-anchor=\"end\" fill=\"#555\">{note}</text>",
            top - 5.0,
            LEFT + PLOT,
            top - 5.0
        );
        let mut decade = 0;
        while f64::from(decade) < highest {
            let y = bottom - (bottom - top) * (f64::from(decade) + 0.3) / highest;
            if decade % 2 == 0 && y > top {
                _ = writeln!(
                    text,
                    "<line x1=\"{LEFT}\" x2=\"{:.0}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\
                     <text x=\"{:.0}\" y=\"{:.1}\" font-size=\"10\" text-anchor=\"end\" fill=\"#555\">1e{decade}</text>",
                    LEFT + PLOT,
                    LEFT - 6.0,
                    y + 3.0
                );
            }
            decade += 1;
        }
        for (edge, count) in buckets.iter().filter(|(_, count)| *count > 0.0) {
            let (from, to) = (self.x(*edge), self.x(edge * 2.0));
            let high = (bottom - top) * (count.log10().max(0.0) + 0.3) / highest;
            _ = writeln!(
                text,
                "<rect x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{high:.1}\" fill=\"{color}\">\
                 <title>{} to {}: {count:.0}</title></rect>",
                bottom - high,
                (to - from - 1.5).max(1.0),
                time(*edge),
                time(edge * 2.0)
            );
        }
        _ = writeln!(
            text,
            "<line x1=\"{LEFT}\" x2=\"{:.0}\" y1=\"{bottom:.1}\" y2=\"{bottom:.1}\" stroke=\"#333\"/>",
            LEFT + PLOT
        );
        self.body.push_str(text);
        self.height += ROW;
    }

    fn axis(&mut self, mark: Option<(f64, &str)>) {
        let y = self.height;
        let (least, most) = self.ends;
        let mut power = least;
        while power <= most {
            let nanos = 2f64.powf(power);
            let x = self.x(nanos);
            _ = writeln!(
                self.body,
                "<text x=\"{x:.1}\" y=\"{y:.0}\" font-size=\"10\" text-anchor=\"middle\" fill=\"#333\">{}</text>",
                time(nanos)
            );
            power += 2.0;
        }
        if let Some((nanos, text)) = mark {
            let x = self.x(nanos);
            _ = writeln!(
                self.body,
                "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"36\" y2=\"{:.0}\" stroke=\"#c00\" stroke-dasharray=\"3 3\"/>\
                 <text x=\"{:.1}\" y=\"34\" font-size=\"10\" fill=\"#c00\">{text}</text>",
                y - 14.0,
                x + 4.0
            );
        }
        self.height += 16.0;
    }

    fn finish(self) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH:.0}\" height=\"{:.0}\" \
             font-family=\"sans-serif\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{}</svg>\n",
            self.height, self.body
        )
    }
}

const GREEN: &str = "#3a7d44";
const BLUE: &str = "#2f5d8a";
const GREY: &str = "#888";
const RED: &str = "#b5412f";

fn gaps(histograms: &Histograms) -> String {
    let mut picture = Picture::new(
        "Gaps between polls of one lcore (count, logarithmic)",
        (9.0, 29.0),
    );
    for (name, title, color) in [
        ("gap_off", "no reclaim", GREY),
        ("gap_off_again", "no reclaim, again", GREY),
        (
            "gap_on",
            "1.3 million pages given and taken back without end, on the other CPU",
            GREEN,
        ),
        (
            "gap_control",
            "the same reclaim done by the lcore itself (positive control)",
            RED,
        ),
    ] {
        let buckets = histograms.get(name).map_or(&[][..], Vec::as_slice);
        let total: f64 = buckets.iter().map(|(_, count)| count).sum();
        let note = format!("{total:.0} polls");
        picture.row(title, &note, color, &powers(buckets));
    }
    picture.axis(Some((10_000.0, "10 us: counted as lost")));
    picture.finish()
}

fn steps(histograms: &Histograms) -> String {
    let mut picture = Picture::new(
        "Time per mailbox and per step (count, logarithmic)",
        (5.0, 27.0),
    );
    let total = |buckets: &[(f64, f64)]| {
        let sum: f64 = buckets.iter().map(|(_, count)| count).sum();
        format!("{sum:.0}")
    };
    picture.row(
        "kernel, no cap: release of one mailbox (published)",
        &format!("{} mailboxes", total(&SOURCE_UNCAPPED)),
        GREY,
        &SOURCE_UNCAPPED,
    );
    picture.row(
        "kernel, cap of 50,000 pages: release of one mailbox (published)",
        &format!("{} mailboxes", total(&SOURCE_CAPPED)),
        GREY,
        &SOURCE_CAPPED,
    );
    for (name, title, color, what) in [
        (
            "mailbox_uncapped",
            "here, no cap: one mailbox filled, read and its 64 pages booked (mean of its step)",
            RED,
            "mailboxes",
        ),
        (
            "mailbox",
            "here, cap of 50,000 pages: the same; none is allocated or released",
            GREEN,
            "mailboxes",
        ),
        (
            "step_uncapped",
            "here, no cap: whole steps on the control thread",
            RED,
            "steps",
        ),
        (
            "step_on",
            "here, cap of 50,000 pages: whole steps on the control thread",
            BLUE,
            "steps",
        ),
    ] {
        let buckets = histograms.get(name).map_or(&[][..], Vec::as_slice);
        let note = format!("{} {what}", total(buckets));
        picture.row(title, &note, color, &powers(buckets));
    }
    picture.axis(Some((1e6, "1 ms")));
    picture.finish()
}

/// Writes both pictures into `folder`; `histograms` has one bucket a line: name, upper edge in
/// nanoseconds, count, with tabs between.
///
/// # Errors
/// A line that is no bucket, a file that cannot be written.
pub fn draw(histograms: &str, folder: &Path) -> Result<(), String> {
    let histograms = read(histograms)?;
    for (name, svg) in [
        ("poll-gaps.svg", gaps(&histograms)),
        ("page-steps.svg", steps(&histograms)),
    ] {
        let path = folder.join(name);
        std::fs::write(&path, svg).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(())
}
