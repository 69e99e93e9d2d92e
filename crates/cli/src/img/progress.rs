//! How far it is, on the terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar on standard error for `bytes`, if `shown` and a terminal is there.
pub(super) fn bar(bytes: u64, shown: bool) -> ProgressBar {
    let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(bytes), target);
    let form =
        "{bar:40} {percent:>3} %  {bytes} of {total_bytes}, {binary_bytes_per_sec}, {eta} left";
    bar.with_style(ProgressStyle::with_template(form).expect("the form is sound"))
}
