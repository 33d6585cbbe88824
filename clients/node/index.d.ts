/** The fencing token: compared as two numbers, the term first. */
export interface Token {
  readonly term: number;
  readonly step: number;
}

/** What tenure refused: `code` is a stable word, the message a sentence. */
export class TenureError extends Error {
  readonly code: string;
}
/** Another holds the lease. */
export class Held extends TenureError {}
/** The lease was lost while it was needed; `code` is the reason. */
export class Lost extends TenureError {}

export interface LeaseOptions {
  /** How many milliseconds to wait for the lease; 0: try once; absent: until it is held. */
  wait?: number;
  /** Written into the lease's record in the same step; absent: the old note stays. */
  note?: string;
  /** Ends the waiting. */
  signal?: AbortSignal;
}

/** A lease that this process holds. */
export class Lease {
  readonly id: string;
  readonly name: string;
  readonly token: Token;
  /** The note that stood in the record when the lease was won. */
  readonly note: string | null;
  /** Aborted when the lease is lost or given back; its reason is a Lost. */
  readonly signal: AbortSignal;
  /** Whether nobody else can hold the lease now: a clock read, no I/O. */
  held(): boolean;
  /** Throws Lost unless the lease is held. */
  check(): void;
  /** Replaces the note in the lease's record; resolves when it stands. */
  writeNote(note: string): Promise<void>;
  /** Gives the lease back: what it guarded has ended. */
  release(): Promise<void>;
  /** `await using lead = await lease("x")`, from Node 24 on. */
  [Symbol.asyncDispose](): Promise<void>;
}

export interface Leader {
  readonly name: string;
  readonly owner: string;
  readonly token: Token;
  /** The process, if it is one of this command. */
  readonly pid: number | null;
}

/** Waits until this process holds the lease. */
export function lease(name: string, options?: LeaseOptions): Promise<Lease>;
/** Runs `work` while the lease is held, and gives it back then; throws Lost if it was lost meanwhile. */
export function withLease<T>(
  name: string,
  work: (lead: Lease) => Promise<T> | T,
  options?: LeaseOptions,
): Promise<T>;
/** Who holds a lease; null: nobody. */
export function leader(name: string): Promise<Leader | null>;
