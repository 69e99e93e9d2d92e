//! A thread that does what a drive is asked, so that the guest runs on meanwhile. Answers come by the machine's door.

use std::fmt::{self, Debug, Formatter};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use ring3_core::disk::{DiskAnswer, DiskError, DiskRequest};
use ring3_core::input::{DeviceInput, Input};

use super::Drive;
use crate::door::Sender;

/// A drive that its worker and the machine share.
pub(super) type Shared = Arc<Mutex<Box<dyn Drive>>>;

/// See the module. It ends, when it is dropped, after all that it was asked.
pub(super) struct Worker {
    requests: Option<mpsc::Sender<DiskRequest>>,
    thread: Option<JoinHandle<()>>,
}

impl Debug for Worker {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").finish_non_exhaustive()
    }
}

impl Worker {
    /// Starts one for `drive`, which belongs to `device`; its answers go to `door`.
    pub(super) fn start(device: &str, drive: Shared, door: Sender) -> io::Result<Worker> {
        let (requests, asked) = mpsc::channel::<DiskRequest>();
        let device = device.to_owned();
        let work = move || {
            for DiskRequest { tag, operation } in asked {
                let mut drive = drive.lock().unwrap_or_else(PoisonError::into_inner);
                // Even where our own code fails the guest is answered, and the machine does not wait for ever.
                let result = catch_unwind(AssertUnwindSafe(|| drive.execute(&operation)));
                let result = result.unwrap_or(Err(DiskError::Host));
                drop(drive);
                let input = DeviceInput::Disk(DiskAnswer { tag, result });
                door.send(Input::Device { name: device.clone(), input });
            }
        };
        let thread = thread::Builder::new().name("drive".to_owned()).spawn(work)?;
        Ok(Worker { requests: Some(requests), thread: Some(thread) })
    }

    /// Has it do `request` after all others. False if it has ended.
    pub(super) fn ask(&self, request: DiskRequest) -> bool {
        self.requests.as_ref().is_some_and(|requests| requests.send(request).is_ok())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            // It does not panic.
            let _ = thread.join();
        }
    }
}
