package io.deltasluice.storage;

import com.fasterxml.jackson.core.JsonProcessingException;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/** What became of the attempts to commit under each hold. Python takes it at the end of the hold. */
public final class Attempts {
  /** What became of one attempt. */
  enum Outcome {
    /** The put was sent, or is about to be. */
    PENDING,
    /** Stored, by us. */
    COMMITTED,
    /** The version is another transaction's. */
    TAKEN,
    /** Nothing was stored, and nothing is on its way. */
    REJECTED,
    /** No answer, and the version was still free afterwards. */
    UNKNOWN
  }

  /** One attempt to write one version. */
  static final class Attempt {
    private final long version;
    private final String txn;
    private final String id;
    private volatile Outcome outcome = Outcome.PENDING;

    private Attempt(long version, String txn, String id) {
      this.version = version;
      this.txn = txn;
      this.id = id;
    }

    void ended(Outcome how) {
      outcome = how;
    }

    Outcome outcome() {
      return outcome;
    }

    /** Takes note that the thread has left the attempt, if it did not say with which outcome. */
    void endedSomehow() {
      if (outcome == Outcome.PENDING) {
        outcome = Outcome.UNKNOWN;
      }
    }
  }

  private static final Map<String, List<Attempt>> BY_HOLD = new ConcurrentHashMap<>();

  private Attempts() {}

  /** Begins an attempt under these holds; under none where the guard is off or only observes: nobody will ask. */
  static Attempt begin(List<String> holds, long version, String txn, String id) {
    Attempt attempt = new Attempt(version, txn, id);
    for (String hold : holds) {
      BY_HOLD.compute(hold, (key, list) -> {
        List<Attempt> attempts = list == null ? new ArrayList<>() : list;
        attempts.add(attempt);
        return attempts;
      });
    }
    return attempt;
  }

  /**
   * Returns the attempts under a hold, in order, as a JSON array of objects with {@code version}, {@code txn},
   * {@code attempt} and {@code outcome}.
   */
  public static String of(String hold) throws JsonProcessingException {
    var all = CommitBody.JSON.createArrayNode();
    BY_HOLD.computeIfPresent(hold, (key, list) -> {
      for (Attempt attempt : list) {
        all.addObject()
            .put("version", attempt.version)
            .put("txn", attempt.txn)
            .put("attempt", attempt.id)
            .put("outcome", name(attempt.outcome));
      }
      return list;
    });
    return CommitBody.JSON.writeValueAsString(all);
  }

  /** Returns the name by which Python knows an outcome. */
  static String name(Outcome outcome) {
    return outcome.name().toLowerCase(Locale.ROOT);
  }

  /** Forgets a hold. */
  public static void forget(String hold) {
    BY_HOLD.remove(hold);
  }
}
