//! Chooses the visible part of a large screen.

/// How many columns and rows the view moves at a time.
const STEP: (usize, usize) = (8, 4);

/// The part of the screen that the terminal shows.
#[derive(Debug, Default)]
pub(crate) struct Window {
    /// The first visible column and row.
    corner: (usize, usize),
    /// The last position of the cursor.
    cursor: Option<(usize, usize)>,
    /// The sizes of the screen and of the terminal.
    sizes: ((usize, usize), (usize, usize)),
}

impl Window {
    /// Returns the first visible column and row.
    pub(crate) fn corner(&self) -> (usize, usize) {
        self.corner
    }

    /// Moves the window so that `cursor` is visible, if the cursor has moved or a size has changed; otherwise
    /// a person may have moved the window to look at something. Then keeps the window on the screen.
    pub(crate) fn follow(
        &mut self,
        screen: (usize, usize),
        terminal: (usize, usize),
        cursor: Option<(usize, usize)>,
    ) {
        let moved = (cursor, (screen, terminal)) != (self.cursor, self.sizes);
        (self.cursor, self.sizes) = (cursor, (screen, terminal));
        if let (true, Some((column, row))) = (moved, cursor) {
            self.corner.0 = nearest(self.corner.0, terminal.0, column);
            self.corner.1 = nearest(self.corner.1, terminal.1, row);
        }
        self.stay_on_screen();
    }

    /// Moves the window by this many steps.
    pub(crate) fn scroll(&mut self, right: isize, down: isize) {
        let moved = |from: usize, steps: isize, step: usize| {
            from.saturating_add_signed(steps.saturating_mul(step as isize))
        };
        self.corner.0 = moved(self.corner.0, right, STEP.0);
        self.corner.1 = moved(self.corner.1, down, STEP.1);
        self.stay_on_screen();
    }

    fn stay_on_screen(&mut self) {
        let (screen, terminal) = self.sizes;
        self.corner.0 = self.corner.0.min(screen.0.saturating_sub(terminal.0));
        self.corner.1 = self.corner.1.min(screen.1.saturating_sub(terminal.1));
    }
}

/// Returns the start nearest to `from` of a window of `length` that contains `place`.
fn nearest(from: usize, length: usize, place: usize) -> usize {
    from.clamp((place + 1).saturating_sub(length.max(1)), place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_that_is_large_enough_shows_all() {
        let mut window = Window::default();
        window.follow((80, 25), (100, 30), Some((79, 24)));
        assert_eq!(window.corner(), (0, 0));
        window.scroll(1, 1);
        assert_eq!(window.corner(), (0, 0));
    }

    #[test]
    fn the_cursor_is_visible() {
        let mut window = Window::default();
        window.follow((80, 25), (80, 24), Some((0, 23)));
        assert_eq!(window.corner(), (0, 0));
        window.follow((80, 25), (80, 24), Some((0, 24)));
        assert_eq!(window.corner(), (0, 1));
        window.follow((80, 25), (80, 24), Some((0, 10)));
        assert_eq!(window.corner(), (0, 1), "it is still there");
        window.follow((80, 25), (80, 24), Some((0, 0)));
        assert_eq!(window.corner(), (0, 0));
        window.follow((80, 25), (20, 10), Some((70, 12)));
        assert_eq!(window.corner(), (51, 3));
    }

    #[test]
    fn the_window_stays_where_the_user_moved_it_until_the_cursor_moves() {
        let mut window = Window::default();
        window.follow((80, 25), (40, 10), Some((0, 0)));
        window.scroll(1, 1);
        assert_eq!(window.corner(), (8, 4));
        window.follow((80, 25), (40, 10), Some((0, 0)));
        assert_eq!(window.corner(), (8, 4));
        window.scroll(100, 100);
        assert_eq!(window.corner(), (40, 15));
        window.scroll(-1, -1);
        assert_eq!(window.corner(), (32, 11));
        window.follow((80, 25), (40, 10), Some((1, 0)));
        assert_eq!(window.corner(), (1, 0));
    }

    #[test]
    fn no_size_is_too_small() {
        let mut window = Window::default();
        window.follow((0, 0), (0, 0), Some((5, 5)));
        assert_eq!(window.corner(), (0, 0));
        window.follow((80, 25), (0, 0), Some((5, 5)));
        assert_eq!(window.corner(), (5, 5), "nothing is to be seen, from there on");
    }
}
