//! The mouse: three buttons, and a wheel for software that asks for one.
//!
//! From the IBM Personal System/2 Hardware Interface Technical Reference, "Mouse"; the wheel as in Microsoft's
//! IntelliMouse, which software wakes by setting the sample rates 200, 100 and 80 in a row.
//!
//! Where a real mouse loses counts and clicks that come faster than it may report, this one keeps some for
//! later reports: the hand that moves it may be a program.

use std::collections::VecDeque;

use ring3_core::input::MouseMove;
use serde::{Deserialize, Serialize};

const ACKNOWLEDGE: u8 = 0xfa;
const RESEND: u8 = 0xfe;
/// The byte after one that was answered by [`RESEND`] is wrong as well.
const ERROR: u8 = 0xfc;
const TEST_PASSED: u8 = 0xaa;
const ID_STANDARD: u8 = 0;
const ID_WHEEL: u8 = 3;

/// The rates that wake the wheel.
const KNOCK: [u8; 3] = [200, 100, 80];
/// Reports per second that can be set.
const SAMPLE_RATES: [u8; 7] = [10, 20, 40, 60, 80, 100, 200];
const DEFAULT_SAMPLE_RATE: u8 = 100;
/// 4 counts a millimetre.
const DEFAULT_RESOLUTION: u8 = 2;
const LAST_RESOLUTION: u8 = 3;

// The first byte of a report; the buttons are in the same places elsewhere.
const LEFT: u8 = 1 << 0;
const RIGHT: u8 = 1 << 1;
const MIDDLE: u8 = 1 << 2;
const ALWAYS: u8 = 1 << 3;
const X_NEGATIVE: u8 = 1 << 4;
const Y_NEGATIVE: u8 = 1 << 5;

// The first byte of the status.
const STATUS_REMOTE: u8 = 1 << 6;
const STATUS_ENABLED: u8 = 1 << 5;
const STATUS_SCALING: u8 = 1 << 4;

/// The most counts in one report, either way: nine bits with a sign, and four for the wheel.
const MOST_COUNTS: i32 = 255;
const MOST_WHEEL: i32 = 7;
/// Counts that are kept for later reports, either way.
const MOST_KEPT: i32 = 0x7fff;
/// Changes of buttons that are kept for later reports.
const MOST_REPORTS: usize = 16;
/// The longest answer: acknowledgement and status, or acknowledgement and a report.
const LONGEST_REPLY: usize = 5;

/// A command of which the option byte is still to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Pending {
    SampleRate,
    Resolution,
}

/// When the mouse reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Mode {
    /// Whenever something happens.
    Stream,
    /// When it is asked.
    Remote,
}

/// Counts since the last report, with the buttons as they are then.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Report {
    right: i32,
    up: i32,
    wheel: i32,
    /// [`LEFT`], [`RIGHT`] and [`MIDDLE`].
    buttons: u8,
}

impl Report {
    fn is_still(&self) -> bool {
        (self.right, self.up, self.wheel) == (0, 0, 0)
    }

    fn move_by(&mut self, moved: &MouseMove) {
        let add = |counts: i32, more: i32| counts.saturating_add(more).clamp(-MOST_KEPT, MOST_KEPT);
        self.right = add(self.right, moved.right);
        self.up = add(self.up, moved.down.saturating_neg());
        self.wheel = add(self.wheel, moved.wheel);
    }
}

/// A mouse.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mouse {
    /// What it has to say to the last byte that it got.
    replies: VecDeque<u8>,
    /// What is left of the report that is being sent.
    packet: VecDeque<u8>,
    pending: Option<Pending>,
    /// What [`RESEND`] from the system asks for: the last answer or report, whole.
    last_sent: Vec<u8>,
    /// The last byte from the system was not understood.
    confused: bool,
    mode: Mode,
    /// It sends back whatever it gets.
    wrap: bool,
    /// It reports by itself in stream mode.
    enabled: bool,
    /// Scaling 2:1.
    scaling: bool,
    /// Powers of two of counts a millimetre: 0 to 3.
    resolution: u8,
    sample_rate: u8,
    wheel: bool,
    /// The last sample rates that were set, the oldest first.
    rates: [u8; 3],
    /// What is to be reported, the oldest first; of all but the last the buttons have changed since.
    reports: VecDeque<Report>,
    /// The buttons as they were reported.
    reported_buttons: u8,
    /// The buttons as they are.
    buttons: u8,
    /// The time for another report has not come yet.
    pausing: bool,
}

impl Default for Mouse {
    fn default() -> Mouse {
        Mouse {
            replies: VecDeque::new(),
            packet: VecDeque::new(),
            pending: None,
            last_sent: Vec::new(),
            confused: false,
            mode: Mode::Stream,
            wrap: false,
            enabled: false,
            scaling: false,
            resolution: DEFAULT_RESOLUTION,
            sample_rate: DEFAULT_SAMPLE_RATE,
            wheel: false,
            rates: [0; 3],
            reports: VecDeque::new(),
            reported_buttons: 0,
            buttons: 0,
            pausing: false,
        }
    }
}

impl Mouse {
    /// False for a state that no sequence of bytes and moves leads to.
    pub(super) fn is_possible(&self) -> bool {
        self.replies.len() <= LONGEST_REPLY
            && self.packet.len() <= LONGEST_REPLY
            && self.last_sent.len() <= LONGEST_REPLY
            && SAMPLE_RATES.contains(&self.sample_rate)
            && self.resolution <= LAST_RESOLUTION
            && self.reports.len() <= MOST_REPORTS
            && self.reports.iter().all(|report| {
                [report.right, report.up, report.wheel]
                    .iter()
                    .all(|counts| (-MOST_KEPT..=MOST_KEPT).contains(counts))
            })
    }

    /// True when [`Mouse::send`] would return something.
    pub(super) fn has_byte(&self) -> bool {
        !self.replies.is_empty() || !self.packet.is_empty() || self.reports_now()
    }

    /// Takes out the next byte for the controller. True with it when that begins a report in stream mode, after
    /// which [`Mouse::pause_nanos`] must pass before [`Mouse::end_pause`] is called.
    pub(super) fn send(&mut self) -> Option<(u8, bool)> {
        if let Some(byte) = self.replies.pop_front() {
            return Some((byte, false));
        }
        let begins = self.packet.is_empty() && self.reports_now();
        if begins {
            let report = self.take_report(self.scaling);
            self.last_sent.clone_from(&report);
            self.packet.extend(report);
            self.pausing = true;
        }
        Some((self.packet.pop_front()?, begins))
    }

    /// The least time from one report to the next in stream mode, in nanoseconds.
    pub(super) fn pause_nanos(&self) -> u64 {
        1_000_000_000 / u64::from(self.sample_rate.max(1))
    }

    /// That time has passed.
    pub(super) fn end_pause(&mut self) {
        self.pausing = false;
    }

    /// Takes a byte from the controller. It breaks off an answer or a report.
    pub(super) fn receive(&mut self, byte: u8) {
        self.replies.clear();
        self.packet.clear();
        let was_confused = std::mem::take(&mut self.confused);
        match (self.pending.take(), byte) {
            (Some(Pending::SampleRate), rate) if SAMPLE_RATES.contains(&rate) => {
                self.set_rate(rate);
            }
            (Some(Pending::Resolution), resolution) if resolution <= LAST_RESOLUTION => {
                self.resolution = resolution;
                self.reply(&[ACKNOWLEDGE]);
            }
            (Some(command), _) => {
                if !was_confused {
                    self.pending = Some(command);
                }
                self.complain(was_confused);
            }
            // Wrap mode ends by its command and by a reset alone.
            (None, byte) if self.wrap && byte != 0xec && byte != 0xff => self.reply(&[byte]),
            (None, command) => self.execute(command, was_confused),
        }
    }

    /// The mouse was moved, or its buttons have changed. Nothing is kept while it does not report.
    pub(super) fn moved(&mut self, moved: &MouseMove) {
        let button = |down: bool, bit: u8| if down { bit } else { 0 };
        self.buttons = button(moved.left_button, LEFT)
            | button(moved.right_button, RIGHT)
            | button(moved.middle_button, MIDDLE);
        if self.mode == Mode::Stream && !self.enabled {
            return;
        }
        let last_buttons = self.reports.back().map_or(self.reported_buttons, |last| last.buttons);
        let is_full = self.reports.len() == MOST_REPORTS;
        match self.reports.back_mut() {
            // A report for a click of the buttons comes of its own.
            Some(last) if last.buttons == self.buttons || is_full => {
                last.move_by(moved);
                last.buttons = self.buttons;
            }
            _ => {
                let mut report = Report { buttons: self.buttons, ..Report::default() };
                report.move_by(moved);
                if !report.is_still() || last_buttons != self.buttons {
                    self.reports.push_back(report);
                }
            }
        }
    }

    /// True when a report is to be sent in stream mode.
    fn reports_now(&self) -> bool {
        self.mode == Mode::Stream
            && self.enabled
            && !self.wrap
            && !self.pausing
            && self.pending.is_none()
            && !self.reports.is_empty()
    }

    /// The oldest report that is due, with as many counts as one can hold; without any, one that
    /// says that nothing has moved ("Data Report").
    fn take_report(&mut self, scaling: bool) -> Vec<u8> {
        let mut rest = self
            .reports
            .pop_front()
            .unwrap_or(Report { buttons: self.buttons, ..Report::default() });
        let most = if scaling { MOST_COUNTS / 2 } else { MOST_COUNTS };
        let take = |counts: &mut i32, most: i32| {
            let taken = (*counts).clamp(-most, most);
            *counts -= taken;
            taken
        };
        let (right, up) = (take(&mut rest.right, most), take(&mut rest.up, most));
        let wheel = take(&mut rest.wheel, MOST_WHEEL);
        self.reported_buttons = rest.buttons;
        if !self.wheel {
            rest.wheel = 0;
        }
        if !rest.is_still() {
            self.reports.push_front(rest);
        }
        let (right, up) = if scaling { (scale(right), scale(up)) } else { (right, up) };
        let sign = |counts: i32, bit: u8| if counts < 0 { bit } else { 0 };
        let first = ALWAYS | rest.buttons | sign(right, X_NEGATIVE) | sign(up, Y_NEGATIVE);
        let mut report = vec![first, right as u8, up as u8];
        if self.wheel {
            report.push(wheel as u8);
        }
        report
    }

    fn execute(&mut self, command: u8, was_confused: bool) {
        match command {
            0xe6 | 0xe7 => {
                self.scaling = command == 0xe7;
                self.reply(&[ACKNOWLEDGE]);
            }
            0xe8 => self.await_option(Pending::Resolution),
            0xe9 => {
                let status = self.status();
                self.reply(&[ACKNOWLEDGE, status, self.resolution, self.sample_rate]);
            }
            0xea => self.set_mode(Mode::Stream),
            0xeb => {
                // Scaling is for stream mode alone ("Set Scaling 2:1").
                let mut reply = vec![ACKNOWLEDGE];
                reply.extend(self.take_report(false));
                self.reply(&reply);
            }
            0xec => {
                self.wrap = false;
                self.reply(&[ACKNOWLEDGE]);
            }
            0xee => {
                self.wrap = true;
                self.reply(&[ACKNOWLEDGE]);
            }
            0xf0 => self.set_mode(Mode::Remote),
            0xf2 => {
                let id = if self.wheel { ID_WHEEL } else { ID_STANDARD };
                self.reply(&[ACKNOWLEDGE, id]);
            }
            0xf3 => self.await_option(Pending::SampleRate),
            0xf4 | 0xf5 => {
                self.enabled = command == 0xf4;
                self.forget_reports();
                self.reply(&[ACKNOWLEDGE]);
            }
            0xf6 => {
                self.set_defaults();
                self.reply(&[ACKNOWLEDGE]);
            }
            0xfe => self.replies.extend(&self.last_sent),
            0xff => {
                *self = Mouse { buttons: self.buttons, ..Mouse::default() };
                self.reply(&[ACKNOWLEDGE, TEST_PASSED, ID_STANDARD]);
            }
            _ => self.complain(was_confused),
        }
    }

    /// "Set Default": the state after a reset, but for the wheel, which stays awake.
    fn set_defaults(&mut self) {
        self.mode = Mode::Stream;
        self.enabled = false;
        self.scaling = false;
        self.resolution = DEFAULT_RESOLUTION;
        self.sample_rate = DEFAULT_SAMPLE_RATE;
        self.forget_reports();
    }

    fn set_mode(&mut self, mode: Mode) {
        self.mode = mode;
        self.forget_reports();
        self.reply(&[ACKNOWLEDGE]);
    }

    fn forget_reports(&mut self) {
        self.reports.clear();
        self.reported_buttons = self.buttons;
    }

    fn set_rate(&mut self, rate: u8) {
        self.sample_rate = rate;
        self.rates = [self.rates[1], self.rates[2], rate];
        self.wheel |= self.rates == KNOCK;
        self.reply(&[ACKNOWLEDGE]);
    }

    /// The first byte of the answer to "Status Request".
    fn status(&self) -> u8 {
        let bit = |set: bool, bit: u8| if set { bit } else { 0 };
        // The buttons are in another order than in a report.
        bit(self.mode == Mode::Remote, STATUS_REMOTE)
            | bit(self.enabled, STATUS_ENABLED)
            | bit(self.scaling, STATUS_SCALING)
            | bit(self.buttons & LEFT != 0, 1 << 2)
            | bit(self.buttons & MIDDLE != 0, 1 << 1)
            | bit(self.buttons & RIGHT != 0, 1 << 0)
    }

    /// The byte from the system was wrong, for the first time or again.
    fn complain(&mut self, again: bool) {
        self.confused = !again;
        self.replies.push_back(if again { ERROR } else { RESEND });
    }

    fn await_option(&mut self, command: Pending) {
        self.pending = Some(command);
        self.reply(&[ACKNOWLEDGE]);
    }

    fn reply(&mut self, bytes: &[u8]) {
        self.last_sent = bytes.to_vec();
        self.replies.extend(bytes);
    }
}

/// Scaling 2:1: small movements become smaller, large ones twice as large.
fn scale(counts: i32) -> i32 {
    let scaled = match counts.abs() {
        small @ 0..=1 => small,
        2 => 1,
        3 => 3,
        4 => 6,
        5 => 9,
        large => 2 * large,
    };
    scaled * counts.signum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(mouse: &mut Mouse) -> Vec<u8> {
        std::iter::from_fn(|| mouse.send().map(|(byte, _)| byte)).collect()
    }

    fn exchange(mouse: &mut Mouse, bytes: &[u8]) -> Vec<u8> {
        let mut answers = Vec::new();
        for byte in bytes {
            mouse.receive(*byte);
            answers.extend(sent(mouse));
        }
        answers
    }

    /// One that reports.
    fn enabled() -> Mouse {
        let mut mouse = Mouse::default();
        assert_eq!(exchange(&mut mouse, &[0xf4]), [0xfa]);
        mouse
    }

    fn moved(right: i32, down: i32) -> MouseMove {
        MouseMove { right, down, ..MouseMove::default() }
    }

    /// All reports, as if there was no pause between them.
    fn reports(mouse: &mut Mouse) -> Vec<u8> {
        let mut bytes = Vec::new();
        loop {
            mouse.end_pause();
            let report = sent(mouse);
            if report.is_empty() {
                return bytes;
            }
            bytes.extend(report);
        }
    }

    #[test]
    fn commands_are_answered_as_the_reference_says() {
        let dialogues: [(&[u8], &[u8]); 13] = [
            (&[0xff], &[0xfa, 0xaa, 0x00]),
            (&[0xf2], &[0xfa, 0x00]),
            (&[0xe9], &[0xfa, 0x00, 0x02, 100]),
            (&[0xe7, 0xf4, 0xe9], &[0xfa, 0xfa, 0xfa, 0x30, 0x02, 100]),
            (&[0xf0, 0xe9], &[0xfa, 0xfa, 0x40, 0x02, 100]),
            (&[0xe8, 3, 0xf3, 40, 0xe9], &[0xfa, 0xfa, 0xfa, 0xfa, 0xfa, 0x00, 3, 40]),
            (&[0xe7, 0xe8, 0, 0xf6, 0xe9], &[0xfa, 0xfa, 0xfa, 0xfa, 0xfa, 0x00, 2, 100]),
            (&[0xee, 0x12, 0xf4, 0xec, 0xf2], &[0xfa, 0x12, 0xf4, 0xfa, 0xfa, 0x00]),
            (&[0xeb], &[0xfa, 0x08, 0, 0]),
            (&[0xf2, 0xfe], &[0xfa, 0x00, 0xfa, 0x00]),
            (&[0x12, 0x12], &[0xfe, 0xfc]),
            (&[0xf3, 99, 80, 0xe9], &[0xfa, 0xfe, 0xfa, 0xfa, 0x00, 2, 80]),
            (&[0xe8, 4, 4], &[0xfa, 0xfe, 0xfc]),
        ];
        for (sent, answers) in dialogues {
            assert_eq!(exchange(&mut Mouse::default(), sent), answers, "{sent:x?}");
        }
    }

    #[test]
    fn movements_are_reported_with_their_signs() {
        let mut mouse = Mouse::default();
        mouse.moved(&moved(1, 1));
        assert_eq!(reports(&mut mouse), [], "it is not enabled");
        let mut mouse = enabled();
        mouse.moved(&moved(5, 3));
        assert_eq!(reports(&mut mouse), [0x28, 5, 0xfd], "down is negative");
        mouse.moved(&moved(-2, -4));
        assert_eq!(reports(&mut mouse), [0x18, 0xfe, 4]);
        mouse.moved(&moved(0, 0));
        assert_eq!(reports(&mut mouse), [], "nothing has happened");
        mouse.moved(&moved(300, 0));
        assert_eq!(reports(&mut mouse), [0x08, 255, 0, 0x08, 45, 0]);
        mouse.moved(&moved(i32::MIN, i32::MIN));
        mouse.moved(&moved(i32::MIN, i32::MIN));
        assert!(mouse.is_possible());
    }

    #[test]
    fn no_click_is_lost_between_two_reports() {
        let mut mouse = enabled();
        let left = MouseMove { left_button: true, ..MouseMove::default() };
        for _ in 0..2 {
            mouse.moved(&left);
            mouse.moved(&moved(1, 0));
            mouse.moved(&moved(1, 0));
        }
        let clicks = [0x09, 0, 0, 0x08, 2, 0];
        assert_eq!(reports(&mut mouse), [clicks, clicks].concat());
        for right_button in [true, false].repeat(20) {
            mouse.moved(&MouseMove { right_button, ..MouseMove::default() });
        }
        assert!(mouse.is_possible());
        assert_eq!(reports(&mut mouse).len(), 3 * MOST_REPORTS);
    }

    #[test]
    fn buttons_are_in_both_orders() {
        let mut mouse = enabled();
        let middle = MouseMove { middle_button: true, left_button: true, ..MouseMove::default() };
        mouse.moved(&middle);
        assert_eq!(reports(&mut mouse), [0x0d, 0, 0]);
        assert_eq!(exchange(&mut mouse, &[0xe9])[1], STATUS_ENABLED | 0x06);
    }

    #[test]
    fn a_report_comes_no_sooner_than_the_rate_says() {
        let mut mouse = enabled();
        mouse.moved(&moved(1, 0));
        assert_eq!(mouse.send(), Some((0x08, true)));
        assert_eq!(mouse.send(), Some((1, false)));
        assert_eq!(mouse.send(), Some((0, false)));
        mouse.moved(&moved(1, 0));
        assert!(!mouse.has_byte());
        assert_eq!(mouse.pause_nanos(), 10_000_000);
        mouse.end_pause();
        assert!(mouse.has_byte());
    }

    #[test]
    fn the_wheel_wakes_when_it_is_knocked_at() {
        let mut mouse = enabled();
        let wheel = |wheel| MouseMove { wheel, ..MouseMove::default() };
        mouse.moved(&wheel(1));
        assert_eq!(reports(&mut mouse), [0x08, 0, 0]);
        exchange(&mut mouse, &[0xf3, 200, 0xf3, 100, 0xf3, 80]);
        assert_eq!(exchange(&mut mouse, &[0xf2]), [0xfa, 3]);
        mouse.moved(&wheel(-1));
        assert_eq!(reports(&mut mouse), [0x08, 0, 0, 0xff]);
        mouse.moved(&wheel(9));
        assert_eq!(reports(&mut mouse), [0x08, 0, 0, 7, 0x08, 0, 0, 2]);
        assert_eq!(exchange(&mut mouse, &[0xff, 0xf2]), [0xfa, 0xaa, 0x00, 0xfa, 0x00]);
    }

    #[test]
    fn in_remote_mode_it_reports_when_it_is_asked() {
        let mut mouse = enabled();
        exchange(&mut mouse, &[0xf0, 0xe7]);
        mouse.moved(&moved(4, 0));
        assert_eq!(reports(&mut mouse), []);
        assert_eq!(exchange(&mut mouse, &[0xeb]), [0xfa, 0x08, 4, 0]);
        assert_eq!(exchange(&mut mouse, &[0xeb]), [0xfa, 0x08, 0, 0]);
    }

    #[test]
    fn scaling_follows_the_table() {
        let scaled = [0, 1, 2, 3, 4, 5, 6, 7, -2, -5, -9].map(scale);
        assert_eq!(scaled, [0, 1, 1, 3, 6, 9, 12, 14, -1, -9, -18]);
        let mut mouse = enabled();
        exchange(&mut mouse, &[0xe7]);
        mouse.moved(&moved(-200, 5));
        assert_eq!(reports(&mut mouse), [0x38, 2, 0xf7, 0x18, 0x6e, 0]);
    }

    #[test]
    fn a_command_breaks_a_report_off() {
        let mut mouse = enabled();
        mouse.moved(&moved(1, 0));
        assert_eq!(mouse.send(), Some((0x08, true)));
        assert_eq!(exchange(&mut mouse, &[0xf2]), [0xfa, 0x00]);
    }
}
