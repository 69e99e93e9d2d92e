//! A file that can be read after it was written.

use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;

/// See the module. All clones are the same file.
#[derive(Clone, Default)]
pub(crate) struct File(Rc<RefCell<Vec<u8>>>);

impl Write for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl File {
    /// Returns everything that was written so far.
    pub(crate) fn contents(&self) -> Vec<u8> {
        self.0.borrow().clone()
    }
}
