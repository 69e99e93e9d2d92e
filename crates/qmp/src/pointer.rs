//! Converts a client's mouse events to reports of a mouse.

use ring3_core::input::MouseMove;
use serde::Deserialize;

use crate::protocol::Failure;

/// The largest absolute coordinate (QMP Reference Manual, `InputMoveEvent`); the smallest is 0.
const ABSOLUTE_MAX: i64 = 0x7fff;

/// The axis along which the mouse moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Axis {
    X,
    Y,
}

/// The buttons of a mouse; the wheel counts as two buttons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Button {
    Left,
    Middle,
    Right,
    WheelUp,
    WheelDown,
}

/// One event of the mouse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PointerEvent {
    Button { button: Button, down: bool },
    Move { axis: Axis, counts: i64 },
    Place { axis: Axis, value: i64 },
}

/// The state of the mouse that results from the clients' events so far.
///
/// The machine's mouse reports only movements. For a client that sends positions instead, the first event
/// moves the mouse into the upper left corner. From there the pointer is assumed to move a pixel for each
/// count, which is true if the guest does not accelerate it.
#[derive(Debug, Default)]
pub(crate) struct Pointer {
    /// The buttons that are down.
    held: MouseMove,
    /// The pointer's assumed position on the screen, in pixels to the right and down. It is unknown before
    /// the first position that a client sends.
    place: Option<[i64; 2]>,
}

impl Pointer {
    /// Returns the mouse reports for `events`, which belong together. `screen` returns width and height of
    /// the screen.
    pub(crate) fn reports(
        &mut self,
        events: &[PointerEvent],
        screen: impl FnOnce() -> Result<[usize; 2], Failure>,
    ) -> Result<Vec<MouseMove>, Failure> {
        let placed = events.iter().any(|event| matches!(event, PointerEvent::Place { .. }));
        let size = if placed { screen()?.map(|length| length as i64) } else { [0; 2] };
        let mut reports = Vec::new();
        let mut moved = [0; 2];
        if placed && self.place.is_none() {
            self.report(&mut reports, &mut size.map(|length| -2 * length));
        }
        for event in events {
            match *event {
                PointerEvent::Move { axis, counts } => {
                    moved[axis as usize] += counts.clamp(-ABSOLUTE_MAX, ABSOLUTE_MAX);
                }
                PointerEvent::Place { axis, value } => {
                    let last = (size[axis as usize] - 1).max(0);
                    let to = value.clamp(0, ABSOLUTE_MAX) * last / ABSOLUTE_MAX;
                    let place = &mut self.place.get_or_insert_default()[axis as usize];
                    moved[axis as usize] += to - *place;
                    *place = to;
                }
                PointerEvent::Button { button, down } => {
                    // The button is pressed where the mouse is by then.
                    self.report(&mut reports, &mut moved);
                    let mut report = self.held;
                    match button {
                        Button::Left => report.left_button = down,
                        Button::Middle => report.middle_button = down,
                        Button::Right => report.right_button = down,
                        Button::WheelUp => report.wheel = -i32::from(down),
                        Button::WheelDown => report.wheel = i32::from(down),
                    }
                    if report != self.held {
                        reports.push(report);
                    }
                    self.held = MouseMove { wheel: 0, ..report };
                }
            }
        }
        self.report(&mut reports, &mut moved);
        Ok(reports)
    }

    /// Reports a movement, if there is one, and clears it.
    fn report(&self, reports: &mut Vec<MouseMove>, moved: &mut [i64; 2]) {
        let [right, down] = std::mem::take(moved).map(|counts| counts as i32);
        if (right, down) != (0, 0) {
            reports.push(MouseMove { right, down, ..self.held });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn no_screen() -> Result<[usize; 2], Failure> {
        Err(Failure::generic("there is no screen"))
    }

    #[test]
    fn a_batch_is_one_movement_but_for_its_buttons() {
        let mut pointer = Pointer::default();
        let events = [
            PointerEvent::Move { axis: Axis::X, counts: 3 },
            PointerEvent::Move { axis: Axis::Y, counts: -4 },
            PointerEvent::Button { button: Button::Left, down: true },
            PointerEvent::Move { axis: Axis::X, counts: 1 },
        ];
        let held = MouseMove { left_button: true, ..MouseMove::default() };
        assert_eq!(
            pointer.reports(&events, no_screen).unwrap(),
            [
                MouseMove { right: 3, down: -4, ..MouseMove::default() },
                held,
                MouseMove { right: 1, ..held },
            ]
        );
        let release = [PointerEvent::Button { button: Button::Left, down: false }];
        assert_eq!(pointer.reports(&release, no_screen).unwrap(), [MouseMove::default()]);
        assert_eq!(pointer.reports(&release, no_screen).unwrap(), []);
    }

    #[test]
    fn the_wheel_turns_when_its_button_goes_down() {
        let wheel = |button| [true, false].map(|down| PointerEvent::Button { button, down });
        let mut pointer = Pointer::default();
        let turned = |wheel| [MouseMove { wheel, ..MouseMove::default() }];
        let up = pointer.reports(&wheel(Button::WheelUp), no_screen).unwrap();
        assert_eq!(up, turned(-1));
        let down = pointer.reports(&wheel(Button::WheelDown), no_screen).unwrap();
        assert_eq!(down, turned(1));
    }

    #[test]
    fn places_begin_in_the_corner() {
        let mut pointer = Pointer::default();
        let place = |x, y| {
            [
                PointerEvent::Place { axis: Axis::X, value: x },
                PointerEvent::Place { axis: Axis::Y, value: y },
            ]
        };
        assert!(pointer.reports(&place(0, 0), no_screen).is_err());
        let moved = |right, down| MouseMove { right, down, ..MouseMove::default() };
        let screen = || Ok([640, 480]);
        let first = pointer.reports(&place(0x7fff, 0x7fff), screen).unwrap();
        assert_eq!(first, [moved(-1280, -960), moved(639, 479)]);
        let second = pointer.reports(&place(0x4000, i64::MAX), screen).unwrap();
        assert_eq!(second, [moved(-320, 0)]);
        let third = pointer.reports(&place(i64::MIN, 0), || Ok([0, 0])).unwrap();
        assert_eq!(third, [moved(-319, -479)]);
    }

    #[test]
    fn no_movement_is_too_large() {
        let events = [PointerEvent::Move { axis: Axis::X, counts: i64::MIN }; 2];
        let reports = Pointer::default().reports(&events, no_screen).unwrap();
        assert_eq!(reports, [MouseMove { right: -0xfffe, ..MouseMove::default() }]);
    }
}
