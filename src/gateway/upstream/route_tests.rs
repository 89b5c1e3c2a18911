use super::*;
use crate::protocol::Dialect;
use crate::snapshot::Secret;

fn provider(base_url: &str) -> Provider {
    Provider {
        name: "p".into(),
        base_url: base_url.into(),
        dialects: vec![Dialect::ChatCompletions, Dialect::Messages],
        ..Provider::default()
    }
}

fn connection() -> Connection {
    Connection { name: "c".into(), provider: "p".into(), credential: Some(Secret::new("sk-1")), ..Connection::default() }
}

fn build(provider: &Provider, connection: &Connection) -> Result<Upstream, String> {
    Upstream::new(provider, connection, &TlsConfigs::default()).map_err(|e| e.to_string())
}

#[test]
fn urls_credentials_and_dialects_are_worked_out() {
    let mut p = provider("https://api.example.com/v1/");
    p.base_urls.insert(Dialect::Messages, "https://messages.example.com:8443/x".into());
    p.auth_by_dialect.insert(Dialect::Messages, UpstreamAuth::Header("x-api-key".into()));
    p.query = Some("api-version=1".into());
    let up = build(&p, &connection()).expect("valid");
    let chat = up.endpoint(Endpoint::ChatCompletions).expect("chat");
    assert_eq!(
        (chat.uri.to_string().as_str(), chat.headers["host"].to_str().ok(), chat.origin.port),
        ("/v1/chat/completions?api-version=1", Some("api.example.com"), 443)
    );
    let value = &chat.headers["authorization"];
    assert_eq!((value.to_str().ok(), value.is_sensitive()), (Some("Bearer sk-1"), true));
    let count = up.endpoint(Endpoint::CountTokens).expect("messages");
    assert_eq!((count.uri.path(), count.origin.port), ("/x/messages/count_tokens", 8443));
    assert_eq!((count.headers["x-api-key"].to_str().ok(), count.headers.contains_key("authorization")), (Some("sk-1"), false));
    assert!(up.endpoint(Endpoint::Responses).is_none());
    assert!(!format!("{up:?}").contains("sk-1"));
}

#[test]
fn what_cannot_be_called_is_refused_with_its_field() {
    for (url, part) in [("ftp://x", "https://"), ("https://", "URL"), ("https://u:p@x", "Secret"), ("not a url", "URL")] {
        let error = build(&provider(url), &connection()).expect_err(url);
        assert!(error.contains("baseURL") && error.contains(part), "{error}");
    }
    let empty = Connection { credential: Some(Secret::new(" \n")), ..connection() };
    assert!(build(&provider("https://x"), &empty).expect_err("empty").contains("is empty"));
    let control = Connection { credential: Some(Secret::new("a\nb")), ..connection() };
    assert!(build(&provider("https://x"), &control).expect_err("control").contains("header"));
    let mut elsewhere = connection();
    elsewhere.allowed_hosts = vec!["api.openai.com".into()];
    assert!(build(&provider("https://evil.example"), &elsewhere).expect_err("host").contains("allowed-hosts"));
    assert!(build(&provider("https://API.openai.com"), &elsewhere).is_ok());
    let mut socks = connection();
    socks.proxy_url = Some(Secret::new("socks5://u:secret@x:1"));
    let error = build(&provider("https://x"), &socks).expect_err("socks");
    assert!(error.contains("proxyURL") && !error.contains("secret"), "{error}");
}

#[test]
fn a_plain_proxy_gets_the_whole_url_and_its_own_credential() {
    let mut c = connection();
    c.proxy_url = Some(Secret::new("http://us%65r:pa%40ss@proxy:3128"));
    let up = build(&provider("http://x:81/v1"), &c).expect("valid");
    let chat = up.endpoint(Endpoint::ChatCompletions).expect("chat");
    assert_eq!(chat.uri.to_string(), "http://x:81/v1/chat/completions");
    let proxy = chat.origin.proxy.as_ref().expect("proxy");
    assert_eq!((proxy.host.as_str(), proxy.port), ("proxy", 3128));
    assert_eq!(proxy.authorization.as_ref().map(HeaderValue::as_bytes), Some(&b"Basic dXNlcjpwYUBzcw=="[..]));
    let tls = build(&provider("https://x/v1"), &c).expect("valid");
    assert_eq!(tls.endpoint(Endpoint::ChatCompletions).expect("chat").uri.to_string(), "/v1/chat/completions");
}

#[test]
fn connections_are_shared_only_by_equal_ways() {
    let key = |p: &Provider, c: &Connection| build(p, c).expect("valid").endpoint(Endpoint::ChatCompletions).expect("chat").key.clone();
    let base = provider("https://x/v1");
    let same = key(&base, &connection());
    assert_eq!(same, key(&provider("https://x/other"), &Connection { credential: Some(Secret::new("sk-2")), ..connection() }));
    let proxied = Connection { proxy_url: Some(Secret::new("http://proxy")), ..connection() };
    let mut local = base.clone();
    local.traits.auth_class = AuthClass::Local;
    for other in [
        key(&provider("http://x/v1"), &connection()),
        key(&provider("https://x:444/v1"), &connection()),
        key(&base, &proxied),
        key(&local, &connection()),
    ] {
        assert_ne!(same, other);
    }
}
