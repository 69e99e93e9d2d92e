//! Converts a client's pointer to movements of a mouse, which reports only distances.

use ring3_core::input::MouseMove;

/// Bits of a pointer event's button mask (RFC 6143, section 7.5.5).
const LEFT: u8 = 1 << 0;
const MIDDLE: u8 = 1 << 1;
const RIGHT: u8 = 1 << 2;
/// Buttons 4 and 5 are the wheel: a press of 4 is one step away from the user, and one of 5 a step towards
/// the user.
const WHEEL_UP: u8 = 1 << 3;
const WHEEL_DOWN: u8 = 1 << 4;

/// The pointer of one client.
#[derive(Debug, Default)]
pub(crate) struct Pointer {
    at: Option<(u16, u16)>,
    buttons: u8,
    /// The movement that the machine has not been told of yet.
    pending: Option<MouseMove>,
}

impl Pointer {
    /// Handles a pointer event. Movements with the same buttons are combined; the result is a movement that
    /// is ready to be sent.
    pub(crate) fn event(&mut self, buttons: u8, x: u16, y: u16) -> Option<MouseMove> {
        let ready = if buttons == self.buttons { None } else { self.take() };
        let (old_x, old_y) = self.at.replace((x, y)).unwrap_or((x, y));
        let pressed = buttons & !self.buttons;
        self.buttons = buttons;

        let held = |button| buttons & button != 0;
        let step = |button| i32::from(pressed & button != 0);
        let pending = self.pending.get_or_insert_default();
        pending.right = pending.right.saturating_add(i32::from(x) - i32::from(old_x));
        pending.down = pending.down.saturating_add(i32::from(y) - i32::from(old_y));
        pending.wheel += step(WHEEL_DOWN) - step(WHEEL_UP);
        pending.left_button = held(LEFT);
        pending.middle_button = held(MIDDLE);
        pending.right_button = held(RIGHT);
        ready
    }

    /// Returns the movement that must be sent now.
    pub(crate) fn take(&mut self) -> Option<MouseMove> {
        self.pending.take()
    }

    /// Releases the buttons that the client held when it disconnected.
    pub(crate) fn release_all(&mut self) -> Option<MouseMove> {
        let held = self.buttons & (LEFT | MIDDLE | RIGHT) != 0;
        *self = Pointer::default();
        held.then(MouseMove::default)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_position_is_no_movement() {
        let mut pointer = Pointer::default();
        assert_eq!(pointer.event(0, 300, 200), None);
        assert_eq!(pointer.take(), Some(MouseMove::default()));
        assert_eq!(pointer.take(), None);
    }

    #[test]
    fn movements_add_up_until_a_button_changes() {
        let mut pointer = Pointer::default();
        pointer.event(0, 100, 100);
        pointer.event(0, 110, 95);
        pointer.event(0, 111, 90);
        let moved = pointer.event(LEFT, 112, 90).unwrap();
        assert_eq!(moved, MouseMove { right: 11, down: -10, ..MouseMove::default() });
        let pressed = pointer.take().unwrap();
        assert_eq!(
            pressed,
            MouseMove { right: 1, down: 0, left_button: true, ..MouseMove::default() }
        );
    }

    #[test]
    fn buttons_four_and_five_are_the_wheel() {
        let mut pointer = Pointer::default();
        pointer.event(0, 0, 0);
        pointer.event(WHEEL_UP, 0, 0);
        assert_eq!(pointer.take().unwrap().wheel, -1);
        pointer.event(0, 0, 0);
        assert_eq!(pointer.take().unwrap().wheel, 0);
        pointer.event(WHEEL_DOWN, 0, 0);
        assert_eq!(pointer.take().unwrap().wheel, 1);
    }

    #[test]
    fn a_client_that_leaves_releases_its_buttons() {
        let mut pointer = Pointer::default();
        pointer.event(RIGHT, 5, 5);
        assert_eq!(pointer.release_all(), Some(MouseMove::default()));
        assert_eq!(pointer.release_all(), None);
    }

    #[test]
    fn many_movements_do_not_overflow() {
        let mut pointer = Pointer::default();
        for _ in 0..100_000 {
            pointer.event(0, 0, 0);
            pointer.event(0, u16::MAX, u16::MAX);
            pointer.at = Some((0, 0));
        }
        assert_eq!(pointer.take().unwrap().right, i32::MAX);
    }
}
