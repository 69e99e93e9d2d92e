//! All consoles in a browser.
//!
//! A process of its own serves the page: a client of the server of consoles, as the terminal is. So the server alone decides
//! who types, and the page's process may end and come back without any machine noticing. Pictures come from the machines'
//! VNC, what machines use and their power from the supervisor.
//!
//! * [`address`]: where it is served; [`guard`] and [`token`]: to whom;
//! * [`serving`]: HTTP, and the files of the page, which are in `web/files`;
//! * [`page`]: what a page and this process say to each other over a WebSocket;
//! * [`link`]: the connection of a page with the server of consoles; [`vnc`]: one with a machine's screen;
//! * [`house`]: what all pages share: the list of machines and small pictures; [`orders`]: power, discs and diskettes;
//! * [`rows`]: what a terminal shows; [`keys`]: the keys of browsers.
//!
//! The page's first line is ours: it names the machine, and no guest can draw there. What a guest says reaches the page as
//! pixels of a canvas, and as characters with colours, from a terminal emulator in this process.
//!
//! Nothing waits without bound. A page says when it has drawn what it was sent, and gets the newest then.

mod address;
mod guard;
mod house;
mod keys;
mod link;
mod orders;
mod page;
mod rows;
mod serving;
mod token;
mod vnc;

use std::fs;
use std::net::TcpListener as StdTcpListener;
use std::path::PathBuf;
use std::sync::Arc;

use ring3_host::socket::{SocketFile, listen_at};
use ring3_supervisor::client::Client as Supervisor;
use ring3_supervisor::place::Place;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime;
use tokio::select;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Duration, sleep, timeout};
use tracing::warn;

use crate::error::Error;
pub use address::{Address, BadAddress};
use house::{AGAIN, House};
use serving::Listener;
use token::Token;

/// How long the supervisor may take to read an answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// What is served to whom.
#[derive(Debug, Clone)]
pub struct Options {
    /// The place of the supervisor.
    pub place: Place,
    /// Where the page is served.
    pub address: Address,
    /// The socket at which the supervisor asks whether the server answers.
    pub control: Option<PathBuf>,
    /// The file with the token. Without one the token is new.
    pub token_file: Option<PathBuf>,
    /// The directory with images that may be put into drives.
    pub media: Option<PathBuf>,
}

/// Serves the page until a signal ends it. Calls `tell` with the page's address when it is there, with the token, and
/// `give_up_rights` when all is open that cannot be opened without them.
pub fn run(
    options: &Options,
    tell: impl FnOnce(&str),
    give_up_rights: impl FnOnce(),
) -> Result<(), Error> {
    // A person learns here, and not from an empty page, that there is no supervisor.
    Supervisor::connect(&options.place)?;
    if let Some(path) = &options.media {
        fs::read_dir(path).map_err(|source| Error::Media { path: path.clone(), source })?;
    }
    let token = options.token_file.as_deref().map_or_else(Token::random, Token::in_file)?;
    let runtime =
        runtime::Builder::new_current_thread().enable_all().build().map_err(Error::Host)?;
    let control = options.control.as_deref().map(listen_at).transpose()?;
    let ended = runtime.block_on(async {
        let (listener, _socket_file, url) = listen(&options.address)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(Error::Host)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(Error::Host)?;
        tell(&format!("{url}#token={}", token.text()));
        give_up_rights();
        let house = Arc::new(House::new(options.place.clone(), token, options.media.clone()));
        tokio::spawn(Arc::clone(&house).follow());
        if let Some((control, _)) = &control {
            let control = control.try_clone().and_then(UnixListener::from_std);
            tokio::spawn(tell_pages(Arc::clone(&house), control.map_err(Error::Host)?));
        }
        select! {
            () = serving::serve(&house, &listener) => {}
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        Ok(())
    });
    // A thread may wait for a supervisor that hangs.
    runtime.shutdown_background();
    ended
}

/// Tells all who connect how many pages are open.
async fn tell_pages(house: Arc<House>, listener: UnixListener) {
    loop {
        match listener.accept().await {
            Ok((mut stream, _)) => {
                let text = json!({ "pages": house.open_pages() }).to_string();
                // Whoever does not read so little has left; a socket has room for it.
                let _ = timeout(PATIENCE, stream.write_all(text.as_bytes())).await;
            }
            Err(error) => {
                warn!("the supervisor cannot connect: {error}");
                sleep(AGAIN).await;
            }
        }
    }
}

/// Listens at an address. Returns the page's address in a browser, too.
fn listen(address: &Address) -> Result<(Listener, Option<SocketFile>, String), Error> {
    match address {
        Address::Unix(path) => {
            let (listener, file) = listen_at(path)?;
            let listener = UnixListener::from_std(listener).map_err(Error::Host)?;
            Ok((Listener::Unix(listener), Some(file), "http://localhost/".to_owned()))
        }
        Address::Loopback(address) => {
            let failed = |source| Error::Port { address: *address, source };
            let listener = StdTcpListener::bind(address).map_err(failed)?;
            listener.set_nonblocking(true).map_err(failed)?;
            let url = format!("http://{}/", listener.local_addr().map_err(failed)?);
            let listener = TcpListener::from_std(listener).map_err(failed)?;
            Ok((Listener::Tcp(listener), None, url))
        }
    }
}
