//! How translated code finds guest memory: windows of host addresses, which the host's MMU fills as the
//! guest's page tables say.

pub(crate) mod absent;
pub(crate) mod host_memory;
pub(crate) mod shortage;
pub(crate) mod space;
pub(crate) mod spaces;
pub(crate) mod units;
pub(crate) mod window;
