//! Reads an error body lightly: message fields, codes, waits. Bounded, allocation-free for plain strings, any bytes.

use std::borrow::Cow;

use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};
use smallvec::SmallVec;

/// Bytes of a body that are looked at.
pub const INSPECTED_BYTES: usize = 64 * 1024;
/// Nesting that is followed.
const MAX_DEPTH: u8 = 8;
/// Texts and codes that are kept.
const MAX_FIELDS: usize = 64;

/// What a body says.
#[derive(Debug, Default)]
pub(super) struct Body<'a> {
    /// It is a JSON object or list.
    pub json: bool,
    /// Message fields; the whole body when it is no JSON.
    pub texts: SmallVec<[Cow<'a, [u8]>; 4]>,
    /// `code`, `status`, `reason` and the like.
    pub codes: SmallVec<[Cow<'a, str>; 4]>,
    /// `type` fields.
    pub types: SmallVec<[Cow<'a, str>; 4]>,
    /// A numeric HTTP status of the error.
    pub status: Option<u16>,
    /// `error_code` is exactly 1010.
    pub error_code_1010: bool,
    /// `error` is a string that is nothing but `usage limit reached`.
    pub bare_usage_limit: bool,
    /// Google RetryInfo.
    pub retry_info: SmallVec<[Cow<'a, str>; 1]>,
    /// Google ErrorInfo `quotaResetDelay`.
    pub quota_reset_delay: SmallVec<[Cow<'a, str>; 1]>,
    /// Waits in fields, with the grammar that their name implies.
    pub waits: SmallVec<[(WaitField, Cow<'a, str>); 2]>,
    /// Rate-limit headers that a gateway copied into the body.
    pub headers: SmallVec<[(Cow<'a, str>, Cow<'a, str>); 2]>,
}

/// How the value of a wait field reads.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum WaitField {
    /// `retryAfter`: an instant, a duration or seconds.
    RetryAfter,
    /// Milliseconds.
    Milliseconds,
    /// An instant: epoch or ISO.
    At,
    /// Seconds or a duration.
    In,
}

/// The payload that is inspected: the first `data:` line when the body is a raw SSE frame.
pub(super) fn payload(body: &[u8]) -> &[u8] {
    let body = body.get(..INSPECTED_BYTES).unwrap_or(body).trim_ascii_start();
    if !(body.starts_with(b"data:") || body.starts_with(b"event:") || body.starts_with(b":")) {
        return body;
    }
    let data = |line: &[u8]| line.strip_prefix(b"data:").map(<[u8]>::trim_ascii).is_some_and(|d| !d.is_empty());
    match body.split(|b| *b == b'\n').find(|line| data(line)) {
        Some(line) => line.get(5..).unwrap_or_default().trim_ascii(),
        None => body,
    }
}

/// Reads a body.
pub(super) fn read(raw: &[u8]) -> Body<'_> {
    let bytes = payload(raw);
    let mut body = Body::default();
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        // A cut in the middle of a character, or garbage: what is valid is read.
        Err(e) => std::str::from_utf8(bytes.get(..e.valid_up_to()).unwrap_or_default()).unwrap_or_default(),
    };
    if matches!(text.as_bytes().first(), Some(b'{' | b'[')) {
        let mut json = serde_json::Deserializer::from_str(text);
        let seed = Node { body: &mut body, place: Place::Error, depth: 0 };
        let complete = seed.deserialize(&mut json).and_then(|()| json.end()).is_ok();
        // A body that was cut is JSON as far as it was read.
        body.json = complete || (raw.len() > INSPECTED_BYTES && !(body.texts.is_empty() && body.codes.is_empty()));
        if body.json {
            return body;
        }
        body = Body::default();
    }
    if !bytes.is_empty() {
        body.texts.push(Cow::Borrowed(bytes));
    }
    body
}

/// Where a value stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// An object that may describe an error.
    Error,
    /// The value of `error`.
    ErrorValue,
    /// A message field.
    Message,
    /// A code field; `status`: it may be an HTTP status.
    Code {
        /// The value may be an HTTP status.
        status: bool,
        /// The field is `error_code`.
        cloudflare: bool,
    },
    /// A type field.
    Type,
    /// A wait field.
    Wait(WaitField),
    /// `retryDelay`.
    RetryDelay,
    /// `quotaResetDelay`.
    QuotaResetDelay,
    /// `metadata.headers` of a gateway.
    Headers,
    /// Anything else.
    Ignored,
}

/// The meaning of a key.
fn place_of(key: &str) -> Place {
    let code = |status| Place::Code { status, cloudflare: false };
    match key {
        "error" => Place::ErrorValue,
        "message" | "msg" | "error_description" | "errorMessage" | "error_message" | "detail" | "title" | "description" | "err_msg"
        | "status_msg" | "Message" | "raw" | "error_msg" | "cause" => Place::Message,
        "code" | "statusCode" | "status_code" | "http_status" => code(true),
        "status" => code(true),
        "errorCode" | "error_name" | "__type" | "Code" | "reason" => code(false),
        "error_code" => Place::Code { status: false, cloudflare: true },
        "type" | "@type" => Place::Type,
        "details" | "metadata" | "response" | "innererror" | "inner_error" | "base_resp" | "data" | "body" | "Error" | "errors" => {
            Place::Error
        }
        "headers" => Place::Headers,
        "retryDelay" | "retry_delay" => Place::RetryDelay,
        "quotaResetDelay" => Place::QuotaResetDelay,
        "retryAfter" | "retry_after" | "retry-after" | "Retry-After" => Place::Wait(WaitField::RetryAfter),
        "retry_after_ms" | "retryAfterMs" | "retryDelayMs" | "reset_ms" | "resets_in_ms" => Place::Wait(WaitField::Milliseconds),
        "resets_at"
        | "reset_at"
        | "resetsAt"
        | "resetAt"
        | "reset_timestamp"
        | "quotaResetTimeStamp"
        | "next_available_at"
        | "retry_at"
        | "available_at" => Place::Wait(WaitField::At),
        "reset_seconds"
        | "resets_in_seconds"
        | "reset_in_seconds"
        | "retry_after_seconds"
        | "retryAfterSeconds"
        | "resets_in"
        | "reset_after"
        | "reset_after_seconds"
        | "wait_seconds"
        | "cooldown_seconds"
        | "cooldown_time"
        | "seconds_until_reset"
        | "reset_time" => Place::Wait(WaitField::In),
        _ => Place::Ignored,
    }
}

/// Reads one value into a [`Body`].
struct Node<'b, 'a> {
    body: &'b mut Body<'a>,
    place: Place,
    depth: u8,
}

impl<'a> DeserializeSeed<'a> for Node<'_, 'a> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'a>>(self, d: D) -> Result<(), D::Error> {
        if self.place == Place::Ignored || self.depth > MAX_DEPTH {
            return d.deserialize_ignored_any(IgnoredAny).map(|_| ());
        }
        d.deserialize_any(self)
    }
}

impl<'a> Node<'_, 'a> {
    fn text(self, value: Cow<'a, str>) {
        let body = self.body;
        let fields = body.texts.len()
            + body.codes.len()
            + body.types.len()
            + body.waits.len()
            + body.retry_info.len()
            + body.quota_reset_delay.len();
        if fields >= MAX_FIELDS || value.is_empty() {
            return;
        }
        match self.place {
            Place::ErrorValue => {
                let bare = value.trim_end_matches(['.', ' ']);
                body.bare_usage_limit |= bare.eq_ignore_ascii_case("usage limit reached");
                body.texts.push(bytes_of(value));
            }
            Place::Message | Place::Error => body.texts.push(bytes_of(value)),
            Place::Code { status, .. } => {
                if status && value.len() == 3 {
                    // The highest of several, so that the order of keys does not matter.
                    body.status = body.status.max(value.parse().ok().filter(|s| (400..600).contains(s)));
                }
                body.codes.push(value);
            }
            Place::Type => body.types.push(value),
            Place::Wait(field) => body.waits.push((field, value)),
            Place::RetryDelay => body.retry_info.push(value),
            Place::QuotaResetDelay => body.quota_reset_delay.push(value),
            Place::Headers | Place::Ignored => {}
        }
    }

    fn number(self, text: String, whole: Option<u64>) {
        match self.place {
            Place::Code { status, cloudflare } => {
                self.body.error_code_1010 |= cloudflare && whole == Some(1010);
                let http = whole.and_then(|n| u16::try_from(n).ok()).filter(|n| status && (400..600).contains(n));
                if http.is_some() {
                    self.body.status = self.body.status.max(http);
                } else if !cloudflare {
                    self.text(Cow::Owned(text));
                }
            }
            Place::Wait(_) | Place::RetryDelay | Place::QuotaResetDelay => self.text(Cow::Owned(text)),
            _ => {}
        }
    }
}

/// The bytes of a text.
fn bytes_of(text: Cow<'_, str>) -> Cow<'_, [u8]> {
    match text {
        Cow::Borrowed(t) => Cow::Borrowed(t.as_bytes()),
        Cow::Owned(t) => Cow::Owned(t.into_bytes()),
    }
}

impl<'a> Visitor<'a> for Node<'_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_borrowed_str<E>(self, v: &'a str) -> Result<(), E> {
        self.text(Cow::Borrowed(v));
        Ok(())
    }

    fn visit_str<E>(self, v: &str) -> Result<(), E> {
        self.text(Cow::Owned(v.to_owned()));
        Ok(())
    }

    fn visit_u64<E>(self, v: u64) -> Result<(), E> {
        self.number(v.to_string(), Some(v));
        Ok(())
    }

    fn visit_i64<E>(self, v: i64) -> Result<(), E> {
        self.number(v.to_string(), None);
        Ok(())
    }

    fn visit_f64<E>(self, v: f64) -> Result<(), E> {
        self.number(v.to_string(), None);
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'a>>(self, mut seq: A) -> Result<(), A::Error> {
        let Node { body, place, depth } = self;
        let place = match place {
            // A list under a message field (`detail: [{msg}]`) and a list at the top hold error objects.
            Place::Message => Place::Error,
            other => other,
        };
        while seq.next_element_seed(Node { body, place, depth: depth + 1 })?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<(), A::Error> {
        let Node { body, place, depth } = self;
        match place {
            Place::Headers => {
                while let Some(key) = map.next_key::<Cow<'a, str>>()? {
                    if let Some(value) = map.next_value::<HeaderValue<'a>>()?.0
                        && body.headers.len() < MAX_FIELDS
                    {
                        body.headers.push((key, value));
                    }
                }
                return Ok(());
            }
            Place::RetryDelay => {
                // The protobuf form: {seconds, nanos}.
                let delay = seconds_of(&mut map)?;
                body.retry_info.extend(delay.map(Cow::Owned));
                return Ok(());
            }
            _ => {}
        }
        while let Some(place) = map.next_key_seed(Key)? {
            map.next_value_seed(Node { body, place, depth: depth + 1 })?;
        }
        Ok(())
    }
}

/// Reads `{seconds, nanos}` as a duration text.
fn seconds_of<'a, A: MapAccess<'a>>(map: &mut A) -> Result<Option<String>, A::Error> {
    let mut out = None;
    while let Some(key) = map.next_key::<Cow<'a, str>>()? {
        let value = map.next_value::<HeaderValue<'a>>()?.0;
        if key == "seconds" {
            out = value.map(|v| format!("{v}s"));
        }
    }
    Ok(out)
}

/// Reads a key as its meaning, without a copy.
struct Key;

impl<'a> DeserializeSeed<'a> for Key {
    type Value = Place;
    fn deserialize<D: serde::Deserializer<'a>>(self, d: D) -> Result<Place, D::Error> {
        d.deserialize_str(self)
    }
}

impl Visitor<'_> for Key {
    type Value = Place;
    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a key")
    }
    fn visit_str<E>(self, v: &str) -> Result<Place, E> {
        Ok(place_of(v))
    }
}

/// A scalar as text; `None` for anything else.
struct HeaderValue<'a>(Option<Cow<'a, str>>);

impl<'a> serde::Deserialize<'a> for HeaderValue<'a> {
    fn deserialize<D: serde::Deserializer<'a>>(d: D) -> Result<Self, D::Error> {
        let mut holder = Body::default();
        Node { body: &mut holder, place: Place::Wait(WaitField::In), depth: MAX_DEPTH }.deserialize(d)?;
        Ok(Self(holder.waits.into_iter().next().map(|(_, v)| v)))
    }
}
