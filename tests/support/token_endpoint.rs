//! A token endpoint on loopback that rotates refresh tokens: each is good for one use.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Who signed its certificate.
pub const AUTHORITY: &str = include_str!("../data/tls/ca.pem");
const CERTIFICATE: &[u8] = include_bytes!("../data/tls/server.pem");
const KEY: &[u8] = include_bytes!("../data/tls/server.key");

#[derive(Clone)]
pub struct TokenEndpoint {
    port: u16,
    inner: Arc<Mutex<Inner>>,
    /// Answers are on their way as long as this holds.
    held: watch::Sender<bool>,
}

struct Inner {
    accepted: String,
    tag: String,
    issued: u32,
    lifetime_s: u64,
    script: VecDeque<(u16, String)>,
    seen: Vec<String>,
}

impl TokenEndpoint {
    /// Accepts `refresh_token` first, and issues `at-1`/`rt-1`, `at-2`/`rt-2` and so on, good for `lifetime_s` seconds.
    pub async fn start(refresh_token: &str, lifetime_s: u64) -> Self {
        let chain = vec![CertificateDer::from_pem_slice(CERTIFICATE).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(KEY).unwrap();
        let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config.with_no_client_auth().with_single_cert(chain, key).unwrap()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let inner = Inner {
            accepted: refresh_token.to_owned(),
            tag: String::new(),
            issued: 0,
            lifetime_s,
            script: VecDeque::new(),
            seen: Vec::new(),
        };
        let endpoint =
            Self { port: listener.local_addr().unwrap().port(), inner: Arc::new(Mutex::new(inner)), held: watch::Sender::new(false) };
        let server = endpoint.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, server) = (acceptor.clone(), server.clone());
                tokio::spawn(async move {
                    // A client that does not trust us ends the handshake.
                    let Ok(mut client) = acceptor.accept(stream).await else { return };
                    let mut request = Vec::new();
                    while !complete(&request) {
                        if client.read_buf(&mut request).await.unwrap_or(0) == 0 {
                            return;
                        }
                    }
                    let (status, body) = server.answer(&String::from_utf8(request).unwrap());
                    let _ = server.held.subscribe().wait_for(|held| !held).await;
                    let head = format!(
                        "HTTP/1.1 {status} x\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                        body.len()
                    );
                    let _ = client.write_all((head + &body).as_bytes()).await;
                    let _ = client.shutdown().await;
                });
            }
        });
        endpoint
    }

    pub fn url(&self) -> String {
        format!("https://localhost:{}/oauth/token", self.port)
    }

    /// Issues `at-TAG1`/`rt-TAG1` and so on.
    pub fn tagged(self, tag: &str) -> Self {
        self.inner.lock().unwrap().tag = tag.to_owned();
        self
    }

    /// From now on answers wait until they are let go.
    pub fn hold(&self, hold: bool) {
        self.held.send_replace(hold);
    }

    /// The next answers, whatever is asked.
    pub fn script(&self, answers: &[(u16, &str)]) {
        self.inner.lock().unwrap().script.extend(answers.iter().map(|(status, body)| (*status, (*body).to_owned())));
    }

    /// From now on this refresh token is the good one.
    pub fn accept(&self, refresh_token: &str) {
        self.inner.lock().unwrap().accepted = refresh_token.to_owned();
    }

    /// The forms that were sent.
    pub fn seen(&self) -> Vec<String> {
        self.inner.lock().unwrap().seen.clone()
    }

    fn answer(&self, request: &str) -> (u16, String) {
        let mut inner = self.inner.lock().unwrap();
        let (head, form) = request.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("POST /oauth/token HTTP/1.1"), "{head}");
        assert!(head.to_lowercase().contains("content-type: application/x-www-form-urlencoded"), "{head}");
        inner.seen.push(form.to_owned());
        if let Some(scripted) = inner.script.pop_front() {
            return scripted;
        }
        let good = form.contains("grant_type=refresh_token") && form.split('&').any(|f| f == format!("refresh_token={}", inner.accepted));
        if !good {
            let sent = json_text(form);
            return (400, format!(r#"{{"error":"invalid_grant","error_description":"the refresh token was used before: {sent}"}}"#));
        }
        inner.issued += 1;
        inner.accepted = format!("rt-{}{}", inner.tag, inner.issued);
        let tag = inner.tag.clone();
        let (n, lifetime) = (inner.issued, inner.lifetime_s);
        (200, format!(r#"{{"access_token":"at-{tag}{n}","refresh_token":"rt-{tag}{n}","expires_in":{lifetime},"token_type":"Bearer"}}"#))
    }
}

/// Without what a JSON text would have to escape.
fn json_text(text: &str) -> String {
    text.replace(['"', '\\'], "")
}

fn complete(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.to_lowercase().lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
    body.len() >= length.unwrap_or(0)
}
