//! The server for debuggers, which people and tools switch on and off.

use std::sync::{Mutex, OnceLock, PoisonError};

use ring3_gdb::{Monitor, Place, Server};
use ring3_host::listener::ListenError;
use ring3_vm::Control;

/// See the module.
#[derive(Default)]
pub(crate) struct Debuggers {
    server: Mutex<Option<Server>>,
    monitor: OnceLock<Monitor>,
}

impl std::fmt::Debug for Debuggers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Debuggers").field("server", &self.server).finish_non_exhaustive()
    }
}

impl Debuggers {
    /// Sets what executes the debuggers' `monitor` commands, once.
    pub(crate) fn set_monitor(&self, monitor: Monitor) {
        // It is set by the one who makes the server.
        let _ = self.monitor.set(monitor);
    }

    /// Serves debuggers at `place` from now on, instead of at the last place.
    pub(crate) fn serve(&self, control: &Control, place: &Place) -> Result<(), ListenError> {
        self.stop();
        let monitor = self.monitor.get().cloned();
        let monitor = monitor.unwrap_or_else(|| std::sync::Arc::new(|_: &str| String::new()));
        let server = Server::start(control, place, monitor)?;
        *self.server.lock().unwrap_or_else(PoisonError::into_inner) = Some(server);
        Ok(())
    }

    /// Serves no more debuggers. One that is connected stays so.
    pub(crate) fn stop(&self) {
        drop(self.server.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}
