//! Structured codes and types (decisions 1.2): they are compared as a whole and outrank prose.

use super::evidence::Evidence::{self, *};

/// Codes that are one kind of evidence. A code is any of the fields `code`, `type`, `status`, `reason`, `error_code`, `__type`.
pub struct CodeList {
    /// Stable id, as `explain` shows it.
    pub id: &'static str,
    /// What they are evidence of.
    pub evidence: Evidence,
    /// The codes, compared without case.
    pub codes: &'static [&'static str],
}

const fn list(id: &'static str, evidence: Evidence, codes: &'static [&'static str]) -> CodeList {
    CodeList { id, evidence, codes }
}

/// Every list.
pub static CODES: &[CodeList] = &[
    list("codes.contract-violation", ContractViolation, &["executor_contract_violation"]),
    list("codes.response-binding", ResponseBinding, &["invalid_previous_response_binding"]),
    list("codes.unknown-response", UnknownResponse, &["previous_response_not_found"]),
    list("codes.peer-cooldown", PeerCooldown, &["model_cooldown", "all_targets_cooling_down"]),
    list(
        "codes.account-dead",
        AccountDead,
        &[
            "account_deactivated",
            "account_disabled",
            "account_suspended",
            "account_banned",
            "account_closed",
            "account_deleted",
            "account_terminated",
            "organization_deactivated",
            "organization_disabled",
            "organization_suspended",
            "organization_banned",
            "organization_deleted",
            "key_revoked",
            "api_key_revoked",
            "token_revoked",
            "key_disabled",
            "api_key_disabled",
            "key_deleted",
            "api_key_deleted",
            "revoked_api_key",
            "access_terminated_error",
            "deactivated_workspace",
        ],
    ),
    list(
        "codes.credits",
        Credits,
        &[
            "insufficient_quota",
            "billing_hard_limit_reached",
            "credit_balance_too_low",
            "credits_exhausted",
            "out_of_credits",
            "insufficient_credits",
            "insufficient_funds",
            "payment_required",
            "billing_error",
            "creditserror",
            "billing_not_active",
        ],
    ),
    list("codes.balance", Balance, &["insufficient_balance", "exceeded_current_quota_error"]),
    list("codes.quota", QuotaPhrase, &["quota_exceeded", "quota_exhausted", "monthly_limit_exceeded", "daily_limit_exceeded"]),
    list("codes.subscription", Subscription, &["usage_limit_reached", "usage_limit_exceeded"]),
    list(
        "codes.rate-limit",
        RateLimit,
        &[
            "rate_limit_exceeded",
            "rate_limit_error",
            "rate_limited",
            "too_many_requests",
            "throttlingexception",
            "throttling",
            "requests_limit_reached",
        ],
    ),
    list("codes.concurrency", Concurrency, &["concurrency_limit_reached", "concurrency_limit_exceeded", "too_many_concurrent_requests"]),
    list(
        "codes.overload",
        Overload,
        &["overloaded_error", "overloaded", "server_overloaded", "engine_overloaded", "engine_overloaded_error"],
    ),
    list(
        "codes.capacity",
        Capacity,
        &["overloaded_error", "overloaded", "server_overloaded", "engine_overloaded", "engine_overloaded_error"],
    ),
    list(
        "codes.context-overflow",
        ContextOverflow,
        &["context_length_exceeded", "context_window_exceeded", "string_above_max_length", "request_too_large", "prompt_too_long"],
    ),
    list(
        "codes.model-not-found",
        ModelNotFoundCode,
        &["model_not_found", "deployment_not_found", "deploymentnotfound", "not_found_error", "model_not_available", "model_not_supported"],
    ),
    list("codes.permission", PermissionType, &["permission_error"]),
    list("codes.parameter", Parameter, &["unsupported_parameter", "unsupported_value", "unknown_parameter"]),
    list(
        "codes.key-problem",
        KeyProblem,
        &[
            "invalid_api_key",
            "api_key_invalid",
            "incorrect_api_key",
            "authentication_error",
            "invalid_authentication_error",
            "unauthenticated",
            "invalid_token",
            "expired_token",
            "token_expired",
            "unrecognizedclientexception",
            "expiredtokenexception",
        ],
    ),
    list("codes.gcp-project", GcpProject, &["gcp_project_required"]),
    list("codes.fingerprint", Fingerprint, &["browser_signature_banned", "fingerprint_rejection"]),
    list(
        "codes.local-failure",
        LocalFailure,
        &[
            "rate_limit_queue_timeout",
            "rate_limit_queue_wedged",
            "rate_limit_queue_full",
            "proxy_unreachable",
            "request_translation_failed",
            "request_translation_error",
            "translation_failed",
            "enoent",
            "epipe",
            "eacces",
            "enomem",
            "eperm",
            "emfile",
            "eagain",
        ],
    ),
    list("codes.client-abort", ClientAbort, &["aborterror", "abort_err", "und_err_aborted"]),
];

/// GLM's numeric codes; they mean this for providers on China time only (W-33).
pub static GLM_CODES: &[(&str, Evidence)] =
    &[("1308", Session), ("1310", Weekly), ("1309", Subscription), ("1113", Balance), ("1302", RateLimit), ("1305", Concurrency)];
