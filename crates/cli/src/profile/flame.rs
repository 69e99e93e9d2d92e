//! The profile as a flame graph (B. Gregg, *The Flame Graph*, Communications of the ACM 59, 6): a box for each
//! function, as wide as the share of the samples in which it was on the stack, above the function that called it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::Report;

const WIDTH: f64 = 1200.0;
/// The height of a line of boxes, and of the title.
const LINE: usize = 17;
const TITLE: usize = 30;
/// Room at each side.
const MARGIN: f64 = 10.0;
/// The width of a character, about.
const CHARACTER: f64 = 6.6;
/// A box that is narrower than this is left out.
const NARROWEST: f64 = 0.2;

/// A function, with the functions that it has called.
#[derive(Debug, Default)]
struct Node<'a> {
    samples: u64,
    callees: BTreeMap<&'a str, Node<'a>>,
}

impl Node<'_> {
    /// Returns the number of lines of boxes.
    fn depth(&self) -> usize {
        1 + self.callees.values().map(Node::depth).max().unwrap_or(0)
    }
}

/// Draws `report`.
pub(super) fn draw(report: &Report) -> String {
    let mut root = Node::default();
    for (names, count) in &report.0 {
        let mut node = &mut root;
        node.samples += count;
        for name in names {
            node = node.callees.entry(name).or_default();
            node.samples += count;
        }
    }
    let height = TITLE + (root.depth() + 1) * LINE;
    let mut picture = Picture { text: String::new(), all: root.samples.max(1), height };
    let _ = writeln!(
        picture.text,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"monospace\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{MARGIN}\" y=\"20\" font-size=\"15\">{} samples</text>",
        root.samples
    );
    picture.draw("all", "all", &root, 0, MARGIN);
    picture.text.push_str("</svg>\n");
    picture.text
}

struct Picture {
    text: String,
    /// Number of all samples.
    all: u64,
    height: usize,
}

impl Picture {
    /// Draws the function `name` with what it has called, from `x` on, in the line `line` from below. `activity`
    /// decides about its color.
    fn draw(&mut self, name: &str, activity: &str, node: &Node<'_>, line: usize, x: f64) {
        let share = ratio(node.samples, self.all);
        let width = share * (WIDTH - 2.0 * MARGIN);
        if width < NARROWEST {
            return;
        }
        let y = self.height - (line + 1) * LINE - LINE / 2;
        let (shown, full) = (shortened(name, width), escape(name));
        let _ = writeln!(
            self.text,
            "<g><title>{full}: {} samples, {:.2} %</title>\
             <rect x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"{}\" rx=\"1\" fill=\"{}\"/>\
             <text x=\"{:.1}\" y=\"{}\">{}</text></g>",
            node.samples,
            share * 100.0,
            LINE - 1,
            color(name, activity),
            x + 3.0,
            y + 12,
            escape(&shown)
        );
        let mut x = x;
        for (callee, node) in &node.callees {
            let activity = if line == 0 { callee } else { activity };
            self.draw(callee, activity, node, line + 1, x);
            x += ratio(node.samples, self.all) * (WIDTH - 2.0 * MARGIN);
        }
    }
}

/// Returns `part` as a share of `all`, to a millionth.
fn ratio(part: u64, all: u64) -> f64 {
    let millionths = u128::from(part) * 1_000_000 / u128::from(all);
    f64::from(u32::try_from(millionths).unwrap_or(1_000_000)) / 1e6
}

/// Returns as much of `name` as a box of this width can show.
fn shortened(name: &str, width: f64) -> String {
    let room = ((width - 6.0) / CHARACTER).max(0.0) as usize;
    if name.chars().count() <= room {
        name.to_owned()
    } else if room < 3 {
        String::new()
    } else {
        name.chars().take(room - 2).chain("..".chars()).collect()
    }
}

/// Returns a color for each activity, a little different for each function, so that boxes can be told apart.
fn color(name: &str, activity: &str) -> String {
    let hue = match activity {
        "supervisor" => 25,
        "user" => 205,
        _ => 100,
    };
    let sum = name.bytes().fold(0_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    let (hue, lightness) = (hue + sum % 20, 62 + sum / 20 % 14);
    format!("hsl({hue},{}%,{lightness}%)", if activity == "all" { 0 } else { 75 })
}

/// Returns `text` as XML.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(stacks: &[(&[&str], u64)]) -> Report {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Report(stacks.iter().map(|(stack, count)| (names(stack), *count)).collect())
    }

    #[test]
    fn a_box_is_as_wide_as_its_share() {
        let picture = draw(&report(&[
            (&["supervisor", "outer", "a<b>"], 30),
            (&["supervisor", "outer"], 20),
            (&["idle"], 50),
        ]));
        assert!(picture.starts_with("<svg") && picture.ends_with("</svg>\n"), "{picture}");
        assert!(picture.contains("<title>outer: 50 samples, 50.00 %</title>"), "{picture}");
        assert!(picture.contains("<title>a&lt;b&gt;: 30 samples, 30.00 %</title>"), "{picture}");
        assert!(picture.contains("width=\"590.0\""), "{picture}");
    }

    #[test]
    fn there_is_a_picture_without_samples() {
        assert!(draw(&report(&[])).contains("0 samples"));
    }

    #[test]
    fn long_names_are_cut() {
        assert_eq!(shortened("do_something_long", 60.0), "do_som..");
        assert_eq!(shortened("do_something_long", 20.0), "");
        assert_eq!(shortened("main", 60.0), "main");
    }
}
