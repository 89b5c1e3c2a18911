//! TLS towards a provider: whom the client trusts, and that connections behind TLS are pooled and cancelled like others.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body_util::BodyExt;
use omniroute::classify::TransportError;
use omniroute::cli::fake::{FakeUpstream, Script};
use omniroute::dial::tls::TlsConfigs;
use omniroute::gateway::upstream::{Call, Client, SendError, Upstream};
use omniroute::protocol::{Dialect, Endpoint};
use omniroute::snapshot::{Connection, Provider, Secret};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

const AUTHORITY: &str = include_str!("../data/tls/ca.pem");
const CERTIFICATE: &[u8] = include_bytes!("../data/tls/server.pem");
const KEY: &[u8] = include_bytes!("../data/tls/server.key");

/// TLS in front of a fake upstream; counts the handshakes.
async fn tls(target: std::net::SocketAddr) -> (u16, Arc<AtomicUsize>) {
    let chain = vec![CertificateDer::from_pem_slice(CERTIFICATE).expect("certificate")];
    let key = PrivateKeyDer::from_pem_slice(KEY).expect("key");
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().expect("versions");
    let config = config.with_no_client_auth().with_single_cert(chain, key).expect("identity");
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let port = listener.local_addr().expect("address").port();
    let handshakes = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&handshakes);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, count) = (acceptor.clone(), Arc::clone(&count));
            tokio::spawn(async move {
                // A client that does not trust us ends the handshake.
                let Ok(mut client) = acceptor.accept(stream).await else { return };
                count.fetch_add(1, Ordering::Relaxed);
                let mut server = TcpStream::connect(target).await.expect("connect");
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    (port, handshakes)
}

fn upstream(host: &str, port: u16, ca_bundle: Option<&str>) -> Upstream {
    let provider = Provider {
        name: "p".into(),
        base_url: format!("https://{host}:{port}/v1"),
        dialects: vec![Dialect::ChatCompletions],
        ca_bundle: ca_bundle.map(str::to_owned),
        ..Provider::default()
    };
    let connection = Connection { name: "c".into(), credential: Some(Secret::new("sk-a")), ..Connection::default() };
    Upstream::new(&provider, &connection, &TlsConfigs::default()).expect("upstream")
}

async fn ask(client: &Client, upstream: &Upstream, stream: bool) -> Result<Bytes, SendError> {
    let body = format!(r#"{{"model":"m","stream":{stream},"messages":[]}}"#);
    let headers = HeaderMap::new();
    let call = Call {
        endpoint: Endpoint::ChatCompletions,
        headers: &headers,
        body: Bytes::from(body).into(),
        response_start: Duration::from_secs(20),
        extra: None,
    };
    let response = client.send(upstream, call).await?;
    Ok(response.into_body().collect().await.expect("body").to_bytes())
}

#[tokio::test]
async fn a_declared_authority_is_trusted_and_connections_are_reused() {
    let fake = FakeUpstream::start("127.0.0.1:0", Script::default()).await.expect("fake");
    let (port, handshakes) = tls(fake.addr()).await;
    let (client, up) = (Client::default(), upstream("localhost", port, Some(AUTHORITY)));
    for stream in [false, true, false] {
        assert!(!ask(&client, &up, stream).await.expect("answer").is_empty());
    }
    assert_eq!((handshakes.load(Ordering::Relaxed), fake.requests().len()), (1, 3));
    assert_eq!(fake.requests()[0].headers["host"], format!("localhost:{port}"));
}

#[tokio::test]
async fn nobody_else_is_trusted() {
    let fake = FakeUpstream::start("127.0.0.1:0", Script::default()).await.expect("fake");
    let (port, _) = tls(fake.addr()).await;
    // Without the authority, and with it under a name that the certificate does not have.
    for up in [upstream("localhost", port, None), upstream("127.0.0.1", port, Some(AUTHORITY))] {
        let error = ask(&Client::default(), &up, false).await.expect_err("not trusted");
        assert_eq!(error.transport, TransportError::Tls, "{error}");
    }
    assert_eq!(fake.requests().len(), 0, "no credential went out");
}
