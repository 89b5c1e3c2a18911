//! The one phrase table (decisions 9.4): it feeds the quota gate, the detectors, the global table, the request-shape rows, the error types
//! and the kind of a 429.
//!
//! Notation (spec: resilience 0.2, see [`super::pattern`]): plain text is a substring; ` .. ` = later on the same line; ` ..40.. ` = at most
//! 40 characters between, line breaks allowed; `‹` and `›` = word boundary; `°` = any one character or none; `␣` = white space;
//! `{a|b|}` = alternatives. All of it ignores ASCII case.

use super::evidence::Evidence::{self, *};

/// Phrases that are one kind of evidence.
pub struct PhraseList {
    /// Stable id, as `explain` shows it.
    pub id: &'static str,
    /// What they are evidence of.
    pub evidence: Evidence,
    /// The phrases.
    pub phrases: &'static [&'static str],
}

const fn list(id: &'static str, evidence: Evidence, phrases: &'static [&'static str]) -> PhraseList {
    PhraseList { id, evidence, phrases }
}

/// Every list, in the order of the specification.
pub static PHRASES: &[PhraseList] = &[
    // 7.3 a and decisions 9.3
    list(
        "phrases.account-dead",
        AccountDead,
        &[
            "account_deactivated",
            "account has been {deactivated|disabled|suspended|terminated|banned|closed|deleted}",
            "your account has been suspended",
            "{this|your} account is {deactivated|disabled|banned|terminated|closed}",
            "account {deactivated|banned|terminated|closed}",
            "this service has been disabled in this account",
            "organization has been {deactivated|disabled|suspended|terminated|banned|closed|deleted}",
            "organization is {deactivated|banned|terminated|closed}",
            "{api key|api-key|api_key|access token|token|credential} {has been |was |is |}{revoked|deleted|deactivated}",
            "{api key|api-key|api_key} {has been |was |is |}disabled",
            "revoked {api key|api-key|api_key|access token|credential}",
        ],
    ),
    // 7.3 b
    list(
        "phrases.retired-model",
        Retired,
        &[
            "‹no longer available›",
            "‹no longer supported›",
            "‹has reached {its |the |}end°of°life›",
            "model ..40.. {deprecated|retired|discontinued|decommissioned}",
            "{deprecated|retired|discontinued|decommissioned} ..40.. model",
        ],
    ),
    // 7.3 c
    list("phrases.endpoint-moved", Moved, &["‹endpoint has moved›", "‹update your base°url›"]),
    list("phrases.no-longer-works", NoLongerWorks, &["‹no longer works›"]),
    // 7.3 d
    list(
        "phrases.suspended-billing",
        SuspendedBilling,
        &["suspended ..120.. {spending limit|billing|invoice|payment}", "{spending limit|billing|invoice|payment} ..120.. suspended"],
    ),
    // 7.2 e
    list("phrases.gemini-metric", GeminiMetric, &["generativelanguage.googleapis.com"]),
    list("phrases.gemini-per-day", GeminiPerDay, &["perday", "_per_day", "per day"]),
    list("phrases.gemini-short", GeminiShort, &["token_count", "_requests"]),
    // 7.3 f
    list(
        "phrases.credits",
        Credits,
        &[
            "insufficient_quota",
            "billing_hard_limit_reached",
            "credit_balance_too_low",
            "your credit balance is too low",
            "credits exhausted",
            "credits_exhausted",
            "out of credits",
            "payment required",
            "tier of the model has been exhausted",
            "tier has been exhausted",
            "insufficient credit balance",
            "insufficient credit",
            "insufficient_credit",
            "exhausted all your credits",
            "doesn't have any credits",
        ],
    ),
    list("phrases.credits-weak", CreditsWeak, &["exceeded your current {quota|usage quota}"]),
    list(
        "phrases.balance",
        Balance,
        &["insufficient balance", "insufficient_balance", "insufficient account balance", "usage balance exhausted"],
    ),
    // 7.3 g
    list("phrases.daily", Daily, &["today's quota", "today’s quota", "daily quota", "requests for today"]),
    list("phrases.tomorrow", Tomorrow, &["try again tomorrow"]),
    list("phrases.tpd-limit", TpdLimit, &["tpd rate limit"]),
    list("phrases.tokens-per-day", TokensPerDay, &["‹tpd›", "tokens per day"]),
    // 7.3 h
    list(
        "phrases.subscription",
        Subscription,
        &[
            "usage limit reached",
            "usage limit has been",
            "claude pro usage limit",
            "you've reached your usage limit",
            "you’ve reached your usage limit",
            "you have reached your usage limit",
            "you've hit your usage limit",
            "you’ve hit your usage limit",
        ],
    ),
    list("phrases.subscription-claude", SubscriptionClaude, &["this request would exceed your account{'|’}s rate limit"]),
    // 7.3 i
    list(
        "phrases.weekly",
        Weekly,
        &[
            "weekly usage limit",
            "weekly limit reached",
            "reached your weekly",
            "1-week quota",
            "week quota",
            "weekly/monthly limit",
            "weekly .. quota .. exhaust",
            "weekly .. exhaust .. quota",
            "quota .. weekly .. exhaust",
            "quota .. exhaust .. weekly",
            "exhaust .. weekly .. quota",
            "exhaust .. quota .. weekly",
            "[1310]",
        ],
    ),
    // 7.3 j
    list(
        "phrases.session",
        Session,
        &[
            "session usage limit",
            "session limit reached",
            "reached your session .. usage limit",
            "usage limit .. reached your session",
            "[1308]",
        ],
    ),
    // 7.2 k, m
    list("phrases.rolling-24h", Rolling24h, &["rolling 24-hour window"]),
    list("phrases.route-forbidden", RouteForbidden, &["not authorized for this route"]),
    // 5.6
    list(
        "phrases.concurrency",
        Concurrency,
        &["too many concurrent requests", "concurrency limit", "parallel request limit", "并发数过高"],
    ),
    // 8.1
    list(
        "phrases.quota",
        QuotaPhrase,
        &[
            "daily .. limit",
            "daily .. quota",
            "per°day .. limit",
            "monthly .. limit",
            "monthly .. quota",
            "per°month .. limit",
            "quota .. exceed",
            "exceed .. {quota›|quotas›}",
            "have exhausted their quota",
            "insufficient .. quota",
            "billing .. cap",
            "credit .. exhaust",
            "resource has been exhausted .. reset after",
            "rolling 24-hour window",
            "限额将在 .. 重置",
            "使用上限",
            "调用上限",
            "额度已用尽",
            "额度已用完",
            // The exact JSON of 8.1 where it stands in a text that is no JSON as a whole.
            "\"error\":\"usage limit reached{|.}\"",
            "\"error\": \"usage limit reached{|.}\"",
        ],
    ),
    list("phrases.quota-caps", QuotaCaps, &["hard°limit", "plan .. limit"]),
    list(
        "phrases.quota-terminal",
        QuotaTerminal,
        &[
            "individual quota reached",
            "insufficient .. quota",
            "billing .. cap",
            "credit .. exhaust",
            "out of credits",
            "insufficient balance",
            "INSUFFICIENT_G1_CREDITS_BALANCE",
            "enable overages",
            "daily free allocation",
            "organization TPD rate limit",
            "‹TPD rate limit›",
        ],
    ),
    // 7.6
    list("phrases.quota-words", QuotaWords, &["quota depleted"]),
    // interface 5
    list(
        "phrases.per-day",
        PerDay,
        &[
            "daily .. {limit|quota}",
            "per°day .. limit",
            "limit .. per°day",
            "requests per day",
            "-per-day",
            "‹rpd›",
            "daily free allocation",
        ],
    ),
    // 7.5 text rows
    list("phrases.no-credentials", NoCredentials, &["no credentials"]),
    list("phrases.request-not-allowed", RequestNotAllowed, &["request not allowed"]),
    list("phrases.improperly-formed", ImproperlyFormed, &["improperly formed request"]),
    list("phrases.rate-limit", RateLimit, &["rate limit", "throttl"]),
    list("phrases.too-many-requests", TooManyRequests, &["too many requests", "too_many_requests"]),
    list(
        "phrases.quota-text",
        QuotaText,
        &[
            "hour quota",
            "quota has been exceeded",
            "quota exceeded",
            "quota will reset",
            "exhausted your capacity",
            "quota exhausted",
            "free tier of the model has been exhausted",
        ],
    ),
    list("phrases.capacity", Capacity, &["capacity", "overloaded", "high demand"]),
    list("phrases.overload", Overload, &["overloaded"]),
    // 7.5, 400 and 422
    list(
        "phrases.context-overflow",
        ContextOverflow,
        &[
            "‹input {is |}too long›",
            "context .. {too long|exceeded|exceeds|overflow|limit}",
            "‹too many tokens›",
            "‹prompt is too long›",
            "context window",
            "maximum context",
            "‹request too large›",
        ],
    ),
    list("phrases.token-limit", TokenLimit, &["max .. token", "token limit", "‹tokens per minute›", "‹tpm›"]),
    list(
        "phrases.model-access",
        ModelAccess,
        &[
            "‹invalid model›",
            "model .. not .. {available|found|supported|accessible}",
            "model .. {does not exist|doesn't exist}",
            "model ..80.. {does not support|doesn't support|unsupported}",
            "{does not support|doesn't support|unsupported} ..80.. model",
            "please select a different model",
            "unknown provider for model",
            "unknown model",
        ],
    ),
    list(
        "phrases.model-permission",
        ModelPermission,
        &["access .. denied .. model", "model .. access .. denied", "{access|permission} ..60.. model", "model ..60.. {access|permission}"],
    ),
    list(
        "phrases.key-problem",
        KeyProblem,
        &[
            "{invalid|incorrect|expired|missing|revoked} api{␣|_|-}key",
            "api{ |_|-}key {is |}{invalid|incorrect|expired|missing|revoked|not valid}",
            "api{ |_|-}key not {valid|found}",
            "authentication {failed|error|required}",
            "{invalid|expired|missing|revoked} {credential|bearer}",
            "‹unauthorized›",
            "‹not authenticated›",
            "无效的令牌",
        ],
    ),
    list(
        "phrases.token-problem",
        TokenProblem,
        &[
            "{invalid|expired|missing|revoked} {access |auth |authentication |}token",
            "token {expired|invalid}",
            "token {is|has} {expired|invalid}",
        ],
    ),
    list("phrases.token-of-text", TokenOfText, &["logit", "token id", "tokens", "json", "position", "unexpected token"]),
    list(
        "phrases.malformed",
        Malformed,
        &[
            "invalid .. message .. format",
            "messages must alternate",
            "roles must alternate",
            "empty {message|content}",
            "non-empty content",
        ],
    ),
    list(
        "phrases.function-name",
        FunctionName,
        &[
            "function{s|} name {can't|cannot|is|has} {be |a |}{blank|empty|missing}",
            "function .. name .. {blank|empty|missing}",
            "tool_call .. name .. {blank|empty|missing}",
        ],
    ),
    list(
        "phrases.parameter",
        Parameter,
        &[
            "max_tokens .. {illegal|must be|range}",
            "parameter is illegal",
            "is illegal .. range",
            "{extra|additional} {input|property|properties|field} .. {not permitted|not allowed}",
            "{extra|additional} {inputs|fields} .. {not permitted|not allowed}",
            "{unknown|unrecognized|unexpected|invalid} {field|property|parameter|input}",
            "{unknown|unrecognized} {argument|request argument}",
            "unsupported {parameter|value}",
        ],
    ),
    list("phrases.rate-words", RateWords, &["high°frequency", "non-compliant", "too many requests", "rate°limit", "频繁", "频率"]),
    list("phrases.nim-degraded", NimDegraded, &["‹function› ..80.. ‹DEGRADED›", "‹DEGRADED› ..80.. ‹function›"]),
    // 6.7
    list(
        "phrases.request-resource",
        RequestResource,
        &["‹file{s|}›", "file-", "input_file", "‹item{s|}›", "‹response{s|}›", "vector store", "vector_store", "‹upload{s|}›"],
    ),
    list("phrases.not-found", NotFoundText, &["not found", "does not exist"]),
    list(
        "phrases.oauth-invalid",
        OAuthInvalid,
        &[
            "invalid authentication credentials",
            "oauth 2",
            "login cookie",
            "valid authentication credential",
            "invalid credentials",
            "re-authenticate your cline account",
        ],
    ),
    list("phrases.model-not-supported", ModelNotSupported, &["model .. is not supported"]),
    list(
        "phrases.geo",
        Geo,
        &[
            "user location is not supported",
            "location is not supported",
            "not supported for the api use",
            "region is not supported",
            "unsupported location",
            "not available in your {location|region}",
        ],
    ),
    list(
        "phrases.fingerprint",
        Fingerprint,
        &["\"error_code\":1010›", "\"error_code\": 1010›", "browser_signature_banned", "fingerprint_rejection"],
    ),
    list("phrases.challenge", Challenge, &["_cf_chl_opt", "cdn-cgi/challenge-platform", "id=\"challenge-error-text\""]),
    list("phrases.request-rejected", RequestRejected, &["request not allowed"]),
    list("phrases.project", Project, &["has not been used in project", "SERVICE_DISABLED", "accessNotConfigured", "PERMISSION_DENIED"]),
    list("phrases.project-disabled", ProjectDisabled, &["it is disabled"]),
    list("phrases.project-kiro", ProjectKiro, &["user is not authorized to make this call"]),
    list("phrases.free-tier-only", FreeTierOnly, &["freetiererror", "free tier can only be used"]),
    list("phrases.sentinel", Sentinel, &["SENTINEL_BLOCKED", "sentinel .. blocked", "turnstile required"]),
    list("phrases.gcp-project", GcpProject, &["gcp_project_required"]),
    // 3.5
    list(
        "phrases.client-abort",
        ClientAbort,
        &[
            "request signal aborted",
            "request_signal_aborted",
            "client disconnected",
            "operation was aborted",
            "AbortError",
            "ABORT_ERR",
            "UND_ERR_ABORTED",
        ],
    ),
    list("phrases.local-failure", LocalFailure, &["controller is already closed", "‹ENOENT›", "‹EPIPE›", "‹EACCES›"]),
    list("phrases.bridge-failure", BridgeFailure, &["bridge"]),
    // 7.1 row 1
    list("phrases.response-binding", ResponseBinding, &["previous_response_id does not belong"]),
    // decisions 1.11: LiteLLM, OpenRouter
    list(
        "phrases.peer-cooldown",
        PeerCooldown,
        &["no deployments available for selected model", "temporarily rate-limited upstream", "all credentials for model .. cooling down"],
    ),
    // 8.3
    list("phrases.china-time", ChinaTime, &["[1308]", "[1310]"]),
    // 9.2, 10
    list("phrases.opencode-endpoint", EndpointUnavailable, &["endpoint is unavailable"]),
    list("phrases.opencode-monthly", MonthlyUsage, &["monthly usage limit reached"]),
    list("phrases.opencode-plan", PlanQuotaCode, &["organization_quota_exceeded", "account_quota_exceeded", "plan_limit_reached"]),
    list("phrases.opencode-model", ModelUnavailable, &["upstream request failed: model is unavailable."]),
    list("phrases.cloudflare-allocation", FreeAllocation, &["daily free allocation"]),
    list("phrases.agentrouter-quota", UserQuota, &["额度不足"]),
    list("phrases.agentrouter-model-denied", ModelDenied, &["无权访问模型"]),
    list("phrases.agentrouter-access-denied", AccessDenied, &["无权访问"]),
];
