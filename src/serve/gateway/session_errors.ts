/** Errors of sessions that cannot be created, called or rewarded. */
import { ApiError } from "../../chat/request.ts";

export function taken(id: string): ApiError {
  return new ApiError(`Cannot create the session ${id}: a run uses it. Choose another session_id.`, {
    status: 409,
    code: "session_exists",
  });
}

export function endedBefore(id: string, what: "create" | "reward"): ApiError {
  return new ApiError(
    `Cannot ${what} the session ${id}: it has ended. Choose another session_id, or send the admin token.`,
    { status: 409, code: "session_ended" },
  );
}

export function ended(): ApiError {
  return new ApiError("Cannot call the session: it has ended.", { status: 410, code: "session_ended" });
}
