//! Resources from YAML documents, for tests of the compiler.

use std::sync::Arc;

use omniroute::compile::Resources;
use serde_json::Value;

/// Reads the documents of `yaml`; namespaces and other metadata stay as written.
pub fn resources(yaml: &str) -> Resources {
    let mut all = Resources::default();
    for document in serde_saphyr::from_multiple::<Value>(yaml).unwrap() {
        add(&mut all, document);
    }
    all
}

fn add(all: &mut Resources, document: Value) {
    fn read<T: serde::de::DeserializeOwned>(v: Value) -> Arc<T> {
        Arc::new(serde_json::from_value(v).unwrap())
    }
    match document["kind"].as_str().unwrap_or_default() {
        "Provider" => all.providers.push(read(document)),
        "Connection" => all.connections.push(read(document)),
        "Combo" => all.combos.push(read(document)),
        "ResilienceSettings" => all.settings.push(read(document)),
        "OperatorErrorRule" => all.rules.push(read(document)),
        "Secret" => all.secrets.push(read(document)),
        "ConfigMap" => all.config_maps.push(read(document)),
        other => panic!("kind `{other}`"),
    }
}
