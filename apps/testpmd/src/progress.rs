//! A progress bar on standard error, for runs whose end is known.

use indicatif::{ProgressBar, ProgressStyle};

use crate::drain;
use crate::session::Session;

/// The bar. Nothing is drawn where standard error is no terminal.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar as long as what is known to come; without that, a counter.
    pub fn new(session: &Session) -> Self {
        let bar = match drain::expected(session) {
            Some(total) if total > 0 => ProgressBar::new(total).with_style(style(
                "{bar:40} {pos}/{len} packets, {per_sec}, {eta} to go",
            )),
            _ => ProgressBar::no_length().with_style(style("{spinner} {pos} packets, {per_sec}")),
        };
        Self { bar }
    }

    /// Shows how far the run is.
    pub fn show(&mut self, session: &Session) {
        if let Some(f) = &session.forwarding {
            let t = f.totals();
            self.bar.set_position(t.rx.max(t.tx));
        }
    }

    /// Leaves the last state on the screen.
    pub fn finish(mut self, session: &Session) {
        self.show(session);
        self.bar.abandon();
    }
}

fn style(template: &str) -> ProgressStyle {
    // The templates are constants; one that does not parse is replaced by the default.
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
