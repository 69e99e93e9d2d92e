//! HTTP: the files of the page, and the way to its WebSocket.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State, WebSocketUpgrade};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;
use tokio::time::sleep;
use tracing::{debug, warn};

use super::guard::{check_site, check_token};
use super::house::{AGAIN, House};
use super::page;
use crate::server::own_process;

/// The most connections at a time. Others wait.
const CONNECTIONS: usize = 64;
/// How long a client may take for the head of a request.
const PATIENCE: Duration = Duration::from_secs(10);
/// The most bytes of the head of a request.
const HEAD_MAX: usize = 16 << 10;
/// The most bytes of a message of a page.
const MESSAGE_MAX: usize = 64 << 10;
/// The name of what page and server say to each other.
const PROTOCOL: &str = "ring3";

/// The files of the page: path, type, contents.
const FILES: [(&str, &str, &str); 7] = [
    ("/", "text/html; charset=utf-8", include_str!("files/index.html")),
    ("/style.css", "text/css; charset=utf-8", include_str!("files/style.css")),
    ("/icon.svg", "image/svg+xml", include_str!("files/icon.svg")),
    ("/main.js", "text/javascript; charset=utf-8", include_str!("files/main.js")),
    ("/consoles.js", "text/javascript; charset=utf-8", include_str!("files/consoles.js")),
    ("/machines.js", "text/javascript; charset=utf-8", include_str!("files/machines.js")),
    ("/link.js", "text/javascript; charset=utf-8", include_str!("files/link.js")),
];

/// What all answers say to browsers: the page loads nothing from elsewhere, runs no script but its own files, is shown in no
/// other page, and stays in no cache.
const HEADERS: [(HeaderName, &str); 7] = [
    (
        CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
    ),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
    (REFERRER_POLICY, "no-referrer"),
    (CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// A socket at which the page is served.
#[derive(Debug)]
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// Serves all who connect.
pub(super) async fn serve(house: &Arc<House>, listener: &Listener) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let router = router(house);
    loop {
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
        let router = router.clone();
        let served = match listener {
            Listener::Tcp(listener) => listener.accept().await.map(|(stream, _)| {
                // Without this a key waits for the answer to the one before.
                let _ = stream.set_nodelay(true);
                tokio::spawn(async move {
                    talk(stream, router).await;
                    drop(place);
                });
            }),
            Listener::Unix(listener) => listener.accept().await.map(|(stream, _)| {
                if own_process(&stream).is_some() {
                    tokio::spawn(async move {
                        talk(stream, router).await;
                        drop(place);
                    });
                }
            }),
        };
        if let Err(error) = served {
            warn!("a browser cannot connect: {error}");
            sleep(AGAIN).await;
        }
    }
}

async fn talk(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, router: Router) {
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .max_buf_size(HEAD_MAX)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .with_upgrades();
    if let Err(error) = served.await {
        debug!("a browser has left: {error}");
    }
}

fn router(house: &Arc<House>) -> Router {
    let mut router = Router::new();
    for (path, kind, text) in FILES {
        router = router.route(path, get(move || async move { ([(CONTENT_TYPE, kind)], text) }));
    }
    router
        .route("/check", get(check))
        .route("/socket", get(socket))
        .layer(middleware::from_fn(guard))
        .with_state(Arc::clone(house))
}

/// Looks at all requests, and adds headers to all answers.
async fn guard(request: Request, next: Next) -> Response {
    let mut response = match check_site(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(status) => {
            (status, "this is not the page's host, or not its own page\n").into_response()
        }
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Says whether a token is right: a page does not learn why a WebSocket was refused.
async fn check(
    State(house): State<Arc<House>>,
    headers: HeaderMap,
) -> Result<StatusCode, StatusCode> {
    check_token(&headers, &house.token).map(|()| StatusCode::NO_CONTENT)
}

async fn socket(
    State(house): State<Arc<House>>,
    headers: HeaderMap,
    upgrade: WebSocketUpgrade,
) -> Result<Response, StatusCode> {
    check_token(&headers, &house.token)?;
    let place = Arc::clone(&house.pages).try_acquire_owned();
    let place = place.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
    let upgrade =
        upgrade.protocols([PROTOCOL]).max_message_size(MESSAGE_MAX).max_frame_size(MESSAGE_MAX);
    Ok(upgrade.on_upgrade(|socket| async move {
        if let Err(error) = page::talk(house, socket).await {
            debug!("a page has left: {error}");
        }
        drop(place);
    }))
}
