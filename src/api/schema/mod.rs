//! CustomResourceDefinitions, exactly as an API server stores them.
//!
//! Names, columns and subresources come from the kube derive, the schema from schemars; [`normalise`] turns the latter into a strict
//! structural schema. `crds/` is generated from here (`omniroute crds`) and never edited.

mod normalise;
pub mod reference;

use kube::CustomResourceExt;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

pub use normalise::expand_default;

use super::status::UNTOUCHED;
use super::{Combo, Connection, OperatorErrorRule, Provider, ResilienceSettings, combo, connection, provider, rule, settings, status};

/// The definition of one kind.
#[derive(Clone, Debug)]
pub struct Definition {
    /// The kind (`Provider`).
    pub kind: String,
    /// The plural (`providers`), as in paths and in the name of the definition.
    pub plural: String,
    /// The whole CustomResourceDefinition.
    pub crd: Value,
}

impl Definition {
    /// The structural schema of the kind.
    #[must_use]
    pub fn schema(&self) -> &Value {
        &self.crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    }

    /// The file that `crds/` keeps it in.
    #[must_use]
    pub fn file_name(&self) -> String {
        format!("{}_{}.yaml", super::GROUP, self.plural)
    }
}

/// The five definitions, in the order of the documentation.
#[must_use]
pub fn definitions() -> Vec<Definition> {
    vec![
        define::<Provider, provider::ProviderSpec, status::ProviderStatus>(),
        define::<Connection, connection::ConnectionSpec, status::ConnectionStatus>(),
        define::<Combo, combo::ComboSpec, status::ComboStatus>(),
        define::<ResilienceSettings, settings::ResilienceSettingsSpec, status::SettingsStatus>(),
        define::<OperatorErrorRule, rule::OperatorErrorRuleSpec, status::RuleStatus>(),
    ]
}

fn define<K: CustomResourceExt, S: JsonSchema, T: JsonSchema>() -> Definition {
    let derived = serde_json::to_value(K::crd()).unwrap_or_default();
    let names = &derived["spec"]["names"];
    let version = &derived["spec"]["versions"][0];
    let (kind, plural) = (text(&names["kind"]), text(&names["plural"]));

    let spec = normalise::normalise(schema_of::<S>(), normalise::Part::Spec);
    let description = spec["description"].clone();
    let mut status = normalise::normalise(schema_of::<T>(), normalise::Part::Status);
    status["default"] = json!({"observedGeneration": UNTOUCHED});
    status["description"] = json!("What the operator and the gateway report; only the operator writes it.");
    let mut spec = spec;
    spec["description"] = json!("What its owner wants.");
    if kind == "ResilienceSettings" {
        // `spec: {}` is complete. Without this default a server-side apply after a client-side one (Argo CD, Helm 4) leaves the API server with a null
        // that it refuses: every field that the first one owned came from defaults.
        spec["default"] = json!({});
    }
    let schema = json!({
        "type": "object",
        "description": description,
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "maxLength": 63, "description": "Version of the schema of this object (`omniroute.dev/v1alpha1`)."},
            "kind": {"type": "string", "maxLength": 63, "description": format!("The kind of this object (`{kind}`).")},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status,
        },
    });
    let mut out = json!({
        "name": version["name"],
        "served": true,
        "storage": true,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}},
        "additionalPrinterColumns": version["additionalPrinterColumns"],
    });
    if let Some(fields) = version.get("selectableFields") {
        out["selectableFields"] = fields.clone();
    }
    let mut names = names.clone();
    names["listKind"] = json!(format!("{kind}List"));
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{}", super::GROUP)},
        "spec": {"group": super::GROUP, "names": names, "scope": "Namespaced", "conversion": {"strategy": "None"}, "versions": [out]},
    });
    Definition { kind, plural, crd }
}

fn schema_of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|s| {
        s.inline_subschemas = true;
        s.meta_schema = None;
    });
    settings.into_generator().into_root_schema_for::<T>().to_value()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
