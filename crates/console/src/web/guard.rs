//! Who may ask for what.
//!
//! Whatever page a person's browser shows may send requests to this host, and connect to its sockets. So a request must
//!
//! * name this host (`Host`). A page of another site whose name was made to lead here (DNS rebinding) names that site;
//! * come from a page of this server, if it comes from a page (`Origin`): browsers let a page of any site open a
//!   WebSocket (RFC 6455, section 10.2), and one of another port of this host is another site;
//! * know the token, if it is more than the page itself, which says nothing of any machine.
//!
//! There are no cookies. A browser sends those of one port to all others of the same host, where another user may listen.

use axum::http::header::{AUTHORIZATION, HOST, ORIGIN, SEC_WEBSOCKET_PROTOCOL};
use axum::http::{HeaderMap, HeaderName, StatusCode};

use super::token::Token;

/// The names by which a browser may reach this server.
const OWN_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];
/// What precedes a token among the protocols of a WebSocket, where a page has nowhere else to put it.
const TOKEN_PROTOCOL: &str = "token.";

/// Returns the only value of a header.
fn only(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    let mut values = headers.get_all(name).iter();
    let first = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(first)
}

/// Returns whether a value of the header `Host` is a name of this host, at any port: a tunnel may have another one.
fn is_own(host: &str) -> bool {
    let is_port = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let name = match host.rsplit_once(':') {
        Some((name, port)) if is_port(port) => name,
        _ => host,
    };
    OWN_NAMES.iter().any(|own| name.eq_ignore_ascii_case(own))
}

/// Refuses requests that name another host, or come from a page of another site.
pub(super) fn check_site(headers: &HeaderMap) -> Result<(), StatusCode> {
    let host = only(headers, HOST).filter(|host| is_own(host)).ok_or(StatusCode::FORBIDDEN)?;
    if !headers.contains_key(ORIGIN) {
        return Ok(());
    }
    let origin = only(headers, ORIGIN).and_then(|origin| origin.strip_prefix("http://"));
    let is_same = origin.is_some_and(|origin| origin.eq_ignore_ascii_case(host));
    is_same.then_some(()).ok_or(StatusCode::FORBIDDEN)
}

/// Refuses requests that do not know the token.
pub(super) fn check_token(headers: &HeaderMap, token: &Token) -> Result<(), StatusCode> {
    let bearer = only(headers, AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer "));
    let protocols = only(headers, SEC_WEBSOCKET_PROTOCOL).unwrap_or_default().split(',');
    let mut given = protocols.filter_map(|protocol| protocol.trim().strip_prefix(TOKEN_PROTOCOL));
    let knows = bearer.is_some_and(|given| token.is(given)) || given.any(|given| token.is(given));
    knows.then_some(()).ok_or(StatusCode::UNAUTHORIZED)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    #[test]
    fn requests_name_this_host() {
        for own in ["127.0.0.1:8080", "localhost", "LOCALHOST:1", "[::1]:80", "[::1]"] {
            assert_eq!(check_site(&headers(&[(HOST, own)])), Ok(()), "{own}");
        }
        let others = [
            "",
            "evil.example",
            "evil.example:8080",
            "127.0.0.1.evil.example",
            "localhost.evil.example:80",
            "localhost@evil.example",
            "127.0.0.1:80:80",
            "127.0.0.1:x",
            "[::1",
            "0.0.0.0:80",
        ];
        for other in others {
            assert_eq!(
                check_site(&headers(&[(HOST, other)])),
                Err(StatusCode::FORBIDDEN),
                "{other}"
            );
        }
        assert!(check_site(&HeaderMap::new()).is_err());
        assert!(check_site(&headers(&[(HOST, "localhost"), (HOST, "evil.example")])).is_err());
    }

    #[test]
    fn pages_of_other_sites_are_refused() {
        let check = |origin| check_site(&headers(&[(HOST, "127.0.0.1:8080"), (ORIGIN, origin)]));
        assert_eq!(check("http://127.0.0.1:8080"), Ok(()));
        let others = [
            "null",
            "http://127.0.0.1",
            "http://127.0.0.1:9090",
            "https://127.0.0.1:8080",
            "http://localhost:8080",
            "http://evil.example",
            "http://127.0.0.1:8080.evil.example",
            "",
        ];
        for other in others {
            assert_eq!(check(other), Err(StatusCode::FORBIDDEN), "{other}");
        }
    }

    #[test]
    fn the_token_comes_as_a_bearer_or_as_a_protocol() {
        let token = Token::random().unwrap();
        let check = |name, value: &str| check_token(&headers(&[(name, value)]), &token);
        let text = token.text();
        assert_eq!(check(AUTHORIZATION, &format!("Bearer {text}")), Ok(()));
        assert_eq!(check(SEC_WEBSOCKET_PROTOCOL, &format!("ring3, token.{text}")), Ok(()));
        for wrong in ["", "Bearer ", "Bearer 0", text, "Basic x"] {
            assert_eq!(check(AUTHORIZATION, wrong), Err(StatusCode::UNAUTHORIZED), "{wrong}");
        }
        for wrong in ["", "ring3", "token.", "token.0", text, "ring3,token.,token.x"] {
            assert!(check(SEC_WEBSOCKET_PROTOCOL, wrong).is_err(), "{wrong}");
        }
        assert!(check_token(&HeaderMap::new(), &token).is_err());
    }
}
