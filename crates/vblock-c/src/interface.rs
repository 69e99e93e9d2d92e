//! The functions that C calls, as `include/vblock.h` describes them.
#![allow(unsafe_code)]

use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_ulong, c_ulonglong, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use libc::{EALREADY, EINVAL, EIO, ENODEV, ENOTCONN};

use crate::library::{Act, Library, wait};

/// The function that C wants to be called when an operation is complete.
type Completion = Option<unsafe extern "C" fn(*mut c_char, c_int)>;

struct State {
    library: Option<Library>,
    completion: Completion,
}

static STATE: Mutex<State> = Mutex::new(State { library: None, completion: None });

fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn errno(result: Result<(), c_int>) -> c_int {
    result.err().unwrap_or(0)
}

fn with<T>(act: impl FnOnce(&mut Library) -> Result<T, c_int>) -> Result<T, c_int> {
    act(lock().library.as_mut().ok_or(ENOTCONN)?)
}

/// Calls the completion function for all operations that have ended. Returns their number.
fn deliver() -> c_int {
    let mut state = lock();
    let Some(library) = &mut state.library else { return 0 };
    let ended = library.ended();
    let completion = state.completion;
    // The function may call this library.
    drop(state);
    if let Some(completion) = completion {
        for (buffer, error) in &ended {
            // SAFETY: the program has given this function for this purpose, and the buffer's address is one that
            // it knows. No lock is held.
            unsafe { completion(ptr::with_exposed_provenance_mut(*buffer), *error) };
        }
    }
    c_int::try_from(ended.len()).unwrap_or(c_int::MAX)
}

fn init(socket: &Path, completion: Completion) -> c_int {
    let mut state = lock();
    if state.library.is_some() {
        return EALREADY;
    }
    match Library::connect(socket) {
        Ok(library) => {
            *state = State { library: Some(library), completion };
            0
        }
        Err(error) => error.raw_os_error().unwrap_or(EIO),
    }
}

#[unsafe(no_mangle)]
extern "C" fn vblock_init(completion: Completion) -> c_int {
    let socket = std::env::var_os("VBLOCK_SOCKET").map(PathBuf::from);
    socket.map_or(EINVAL, |socket| init(&socket, completion))
}

/// # Safety
/// `socket` must be null or a string that ends with a zero.
#[unsafe(no_mangle)]
unsafe extern "C" fn vblock_init_at(socket: *const c_char, completion: Completion) -> c_int {
    if socket.is_null() {
        return EINVAL;
    }
    // SAFETY: the header wants a path, which in C is a string that ends with a zero.
    let socket = unsafe { CStr::from_ptr(socket) };
    init(Path::new(OsStr::from_bytes(socket.to_bytes())), completion)
}

#[unsafe(no_mangle)]
extern "C" fn vblock_exit() {
    let library = lock().library.take();
    // Without the lock, since its end waits for the operations under way.
    if let Some(library) = library {
        library.give_up();
    }
}

/// # Safety
/// `base` must be null or the address of a pointer that nobody else uses meanwhile.
#[unsafe(no_mangle)]
unsafe extern "C" fn vblock_get_buffer(size: c_uint, base: *mut *mut c_char) -> *mut c_void {
    let buffer = with(|library| library.buffers.get(size as usize).ok_or(EINVAL));
    let Ok(buffer) = buffer else { return ptr::null_mut() };
    if !base.is_null() {
        // SAFETY: the header wants the address of a pointer, or NULL.
        unsafe { *base = buffer.as_ptr().cast() };
    }
    buffer.as_ptr().cast()
}

#[unsafe(no_mangle)]
extern "C" fn vblock_return_buffer(buffer: *mut c_void) {
    let _ = with(|library| {
        library.buffers.give_back(buffer.addr());
        Ok(())
    });
    deliver();
}

#[unsafe(no_mangle)]
extern "C" fn vblock_ndevs() -> c_int {
    let count = with(|library| {
        library.take_news();
        Ok(library.count())
    });
    deliver();
    count.map_or(0, |count| c_int::try_from(count).unwrap_or(c_int::MAX))
}

#[unsafe(no_mangle)]
extern "C" fn vblock_name(device: c_int) -> *const c_char {
    let name = with(|library| {
        let name = library.name(usize::try_from(device).map_err(|_| EINVAL)?);
        // The name stays where it is until the library ends.
        name.map(|name| name.as_ptr()).ok_or(EINVAL)
    });
    name.unwrap_or(ptr::null())
}

/// # Safety
/// `blocks` and `block_size` must each be null or the address of a number that nobody else uses meanwhile.
#[unsafe(no_mangle)]
unsafe extern "C" fn vblock_get_geometry(
    device: c_int,
    blocks: *mut c_ulong,
    block_size: *mut c_ulong,
) {
    let geometry = with(|library| {
        library.take_news();
        library.geometry(usize::try_from(device).map_err(|_| EINVAL)?).ok_or(EINVAL)
    });
    let (count, size) = geometry.unwrap_or_default();
    for (place, value) in [(blocks, count), (block_size, size)] {
        if !place.is_null() {
            // SAFETY: the header wants the addresses of two numbers, or NULL.
            unsafe { *place = value as c_ulong };
        }
    }
    deliver();
}

/// Waits until the operation is complete that `begin` has begun.
fn until_done(begin: impl FnOnce(&mut Library) -> Result<u64, c_int>) -> c_int {
    let waiter = match with(begin) {
        Ok(waiter) => waiter,
        Err(error) => return error,
    };
    loop {
        deliver();
        let waits = with(|library| {
            library.take_news();
            match library.take_result(waiter) {
                Some(error) => Err(error),
                None => Ok((library.waits(), library.news().map_err(|_| EIO)?)),
            }
        });
        let (disks, news) = match waits {
            Ok(waits) => waits,
            Err(result) => return result,
        };
        if wait(&disks, news.as_ref(), None).is_err() {
            return EIO;
        }
    }
}

/// Begins to transfer data, and with `waits` returns at the end.
fn transfer(
    device: c_int,
    act: Act,
    buffer: *mut c_void,
    offset: u64,
    size: c_uint,
    waits: bool,
) -> c_int {
    let begin = |library: &mut Library| {
        library.take_news();
        let number = usize::try_from(device).map_err(|_| ENODEV)?;
        library.transfer(number, act, buffer.addr(), offset, size as usize, waits)
    };
    if waits {
        return until_done(begin);
    }
    let begun = with(begin);
    deliver();
    errno(begun.map(drop))
}

#[unsafe(no_mangle)]
extern "C" fn vblock_read(
    device: c_int,
    buffer: *mut c_void,
    offset: c_ulonglong,
    size: c_uint,
) -> c_int {
    transfer(device, Act::Read, buffer, offset, size, true)
}

#[unsafe(no_mangle)]
extern "C" fn vblock_write(
    device: c_int,
    buffer: *mut c_void,
    offset: c_ulonglong,
    size: c_uint,
) -> c_int {
    transfer(device, Act::Write, buffer, offset, size, true)
}

#[unsafe(no_mangle)]
extern "C" fn vblock_read_async(
    device: c_int,
    buffer: *mut c_void,
    offset: c_ulonglong,
    size: c_uint,
) -> c_int {
    transfer(device, Act::Read, buffer, offset, size, false)
}

#[unsafe(no_mangle)]
extern "C" fn vblock_write_async(
    device: c_int,
    buffer: *mut c_void,
    offset: c_ulonglong,
    size: c_uint,
) -> c_int {
    transfer(device, Act::Write, buffer, offset, size, false)
}

#[unsafe(no_mangle)]
extern "C" fn vblock_sync(device: c_int) -> c_int {
    until_done(|library| library.flush(usize::try_from(device).map_err(|_| ENODEV)?))
}

#[unsafe(no_mangle)]
extern "C" fn vblock_poll(timeout: c_int) -> c_int {
    let patience = u64::try_from(timeout).ok().map(Duration::from_millis);
    let end = patience.map(|patience| Instant::now() + patience);
    loop {
        let before = with(|library| Ok(library.count()));
        let waits = with(|library| {
            library.take_news();
            let news = library.news().map_err(|_| EIO)?;
            Ok((library.waits(), news, library.count()))
        });
        let (disks, news, count) = match waits {
            Ok(waits) => waits,
            Err(error) => return -error,
        };
        let ended = deliver();
        let is_late = end.is_some_and(|end| Instant::now() >= end);
        if ended > 0 || is_late || before != Ok(count) {
            return ended;
        }
        if wait(&disks, news.as_ref(), end).is_err() {
            return -EIO;
        }
    }
}
