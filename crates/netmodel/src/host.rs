//! The costs of the operations of which a transfer consists, on a host.

/// The costs of a host's operations, in processor cycles.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Host {
    /// Cycles in a second.
    pub frequency: f64,
    /// Bytes that the host copies in a second.
    pub memory_bandwidth: f64,
    /// An exit from a guest to its device model, and the return.
    pub exit: f64,
    /// An interrupt of a guest, until it is acknowledged.
    pub interrupt: f64,
    /// A message to another process.
    pub message: f64,
    /// Waking a thread.
    pub wake_up: f64,
    /// One element of a repeated INS or OUTS.
    pub element: f64,
    /// Mapping a page at another address.
    pub remap: f64,
}

impl Host {
    /// The paper's host: an Intel Core i7-920 with NOVA (table 3.2, and 2.67 GHz as in 6.11). An interrupt
    /// takes two exits. The paper has no cost for remapping a page.
    pub const CORE_I7_920: Host = Host {
        frequency: 2.67e9,
        memory_bandwidth: 12.6e9,
        exit: 1000.0,
        interrupt: 2000.0,
        message: 500.0,
        wake_up: 250.0,
        element: 100.0,
        remap: 0.0,
    };

    /// Returns the cycles for a copy of `bytes` bytes (6.4).
    pub fn copy(&self, bytes: f64) -> f64 {
        bytes * self.frequency / self.memory_bandwidth
    }
}
