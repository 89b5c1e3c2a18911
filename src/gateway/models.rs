//! `/v1/models`: the combos and models that the caller may ask for, with their limits, in the shape of OpenAI or, for clients that say
//! `anthropic-version`, of Anthropic.

use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderValue, Response};
use serde_json::{Value, json};

use super::answer::Refusal;
use super::auth::Caller;
use super::body::Body;
use super::config::Loaded;
use super::metrics::Origin;
use super::service::Answered;
use crate::snapshot::{Combo, Snapshot, TargetKind};

/// One line of the list.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Entry {
    id: String,
    owner: String,
    context_window: Option<u64>,
    max_output_tokens: Option<u64>,
}

/// Answers `GET /v1/models` and `GET /v1/models/ID`.
pub(super) fn answer(loaded: &Loaded, caller: Caller<'_>, parts: &Parts) -> Result<Answered, Refusal> {
    let anthropic = parts.headers.contains_key("anthropic-version");
    let created = loaded.loaded_time.0 / 1000;
    let render = |entry: &Entry| if anthropic { entry.anthropic(&loaded.loaded_time.rfc3339()) } else { entry.openai(created) };
    let mut entries = entries(&loaded.snapshot);
    // Whatever a request could name: also combos of which the key may use some targets.
    entries.retain(|entry| loaded.router.resolve_for(&entry.id, caller.policy).is_ok());
    let wanted = parts.uri.path().strip_prefix("/v1/models/").map(decode);
    let body = match wanted {
        Some(id) => match entries.iter().find(|entry| entry.id == id) {
            Some(entry) => render(entry),
            None => {
                let shown: String = id.chars().take(128).collect();
                let message = format!("there is no model `{shown}` here; GET /v1/models lists those that exist");
                return Err(Refusal::new(404, "model_not_found", message).param("model").hopeless());
            }
        },
        None => {
            let data: Vec<Value> = entries.iter().map(render).collect();
            if anthropic {
                let id = |entry: Option<&Entry>| entry.map(|e| e.id.clone());
                json!({"data": data, "has_more": false, "first_id": id(entries.first()), "last_id": id(entries.last())})
            } else {
                json!({"object": "list", "data": data})
            }
        }
    };
    let mut response = Response::new(Body::full(body.to_string()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(Answered { response, origin: Origin::Gateway, combo: None })
}

impl Entry {
    fn openai(&self, created: i64) -> Value {
        let mut value = json!({"id": self.id, "object": "model", "created": created, "owned_by": self.owner});
        self.limits(&mut value, "context_window", "max_output_tokens");
        value
    }

    fn anthropic(&self, created: &str) -> Value {
        let mut value = json!({"type": "model", "id": self.id, "display_name": self.id, "created_at": created});
        self.limits(&mut value, "max_input_tokens", "max_tokens");
        value
    }

    fn limits(&self, value: &mut Value, input: &str, output: &str) {
        if let Some(object) = value.as_object_mut() {
            for (name, limit) in [(input, self.context_window), (output, self.max_output_tokens)] {
                if let Some(limit) = limit {
                    object.insert(name.to_owned(), limit.into());
                }
            }
        }
    }
}

/// Combos first, then the models of providers, each in the order of the snapshot.
fn entries(snapshot: &Snapshot) -> Vec<Entry> {
    let combos = snapshot.combos.iter().flat_map(|combo| {
        let mut limits = Limits::default();
        limits.add(snapshot, combo, MAX_DEPTH);
        combo.model_names.iter().map(move |name| Entry {
            id: name.clone(),
            owner: "omniroute".to_owned(),
            context_window: limits.context_window,
            max_output_tokens: limits.max_output_tokens,
        })
    });
    let models = snapshot.providers.iter().flat_map(|provider| {
        provider.models.iter().map(|model| Entry {
            id: format!("{}/{}", provider.name, model.name),
            owner: provider.name.clone(),
            context_window: model.context_window,
            max_output_tokens: model.max_output_tokens,
        })
    });
    combos.chain(models).collect()
}

/// Nesting that is looked through for limits; the compiler refuses cycles.
const MAX_DEPTH: u32 = 10;

/// What every target of a combo can take: the smallest known limits.
#[derive(Clone, Copy, Default)]
struct Limits {
    context_window: Option<u64>,
    max_output_tokens: Option<u64>,
}

impl Limits {
    fn add(&mut self, snapshot: &Snapshot, combo: &Combo, depth: u32) {
        for target in &combo.targets {
            match &target.kind {
                TargetKind::Model { provider, model, .. } => {
                    let provider = snapshot.providers.iter().find(|p| p.name == *provider);
                    if let Some(model) = provider.and_then(|p| p.models.iter().find(|m| m.name == *model)) {
                        self.context_window = smaller(self.context_window, model.context_window);
                        self.max_output_tokens = smaller(self.max_output_tokens, model.max_output_tokens);
                    }
                }
                TargetKind::Combo { combo } => {
                    if let Some(inner) = snapshot.combos.iter().find(|c| c.name == *combo).filter(|_| depth > 0) {
                        self.add(snapshot, inner, depth - 1);
                    }
                }
            }
        }
    }
}

fn smaller(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// Undoes percent encoding; what is none stays as it is.
fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let escaped =
            (*first == b'%').then(|| std::str::from_utf8(tail.get(..2)?).ok().and_then(|hex| u8::from_str_radix(hex, 16).ok())).flatten();
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { tail.get(2..).unwrap_or_default() } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{Model, Provider, Target};

    #[test]
    fn a_combo_has_the_smallest_limits_of_what_is_below_it() {
        let model = |name: &str, window| Model { name: name.to_owned(), context_window: window, ..Model::default() };
        let target = |kind| Target { name: "t".to_owned(), kind, weight: 1, fallback_only_on_quota_exhaustion: false, prompt: None };
        let of = |model: &str| target(TargetKind::Model { provider: "p".to_owned(), model: model.to_owned(), connections: vec![] });
        let combo = |name: &str, targets| Combo { name: name.to_owned(), model_names: vec![name.to_owned()], targets, ..Combo::default() };
        let snapshot = Snapshot {
            providers: vec![Provider {
                name: "p".to_owned(),
                models: vec![model("big", Some(200)), model("small", Some(100)), model("unknown", None)],
                ..Provider::default()
            }],
            combos: vec![
                combo("inner", vec![of("small")]),
                combo("outer", vec![of("big"), of("unknown"), target(TargetKind::Combo { combo: "inner".to_owned() })]),
            ],
            ..Snapshot::default()
        };
        let list: Vec<(String, Option<u64>)> = entries(&snapshot).into_iter().map(|e| (e.id, e.context_window)).collect();
        let expected = [("inner", Some(100)), ("outer", Some(100)), ("p/big", Some(200)), ("p/small", Some(100)), ("p/unknown", None)];
        assert_eq!(list, expected.map(|(id, window)| (id.to_owned(), window)));
    }

    #[test]
    fn ids_with_a_slash_may_come_encoded() {
        assert_eq!(decode("openai%2Fgpt-4o"), "openai/gpt-4o");
        assert_eq!(decode("100%"), "100%");
        assert_eq!(decode("%zz%4"), "%zz%4");
    }
}
