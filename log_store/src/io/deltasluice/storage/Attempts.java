package io.deltasluice.storage;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/** The attempts to commit under each hold, with their outcomes. Python reads them at the end of the hold. */
public final class Attempts {
  /** The outcome of one attempt. */
  enum Outcome {
    /** The put was sent, or is sent next. */
    PENDING,
    /** This attempt stored the version. */
    COMMITTED,
    /** Another transaction has the version. */
    TAKEN,
    /** Nothing was stored, and nothing will be. */
    REJECTED,
    /** The put may be stored, now or later. */
    UNKNOWN
  }

  /** One attempt to write one version. */
  static final class Attempt {
    private final long version;
    private final String txn;
    private final String id;
    private volatile Outcome outcome = Outcome.PENDING;

    /** When the outcome was known, microseconds since the epoch; 0 before. */
    private volatile long endedMicros;

    private Attempt(long version, String txn, String id) {
      this.version = version;
      this.txn = txn;
      this.id = id;
    }

    void end(Outcome finalOutcome) {
      endedMicros = ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now());
      outcome = finalOutcome;
    }

    Outcome outcome() {
      return outcome;
    }

    /** Ends the attempt with {@link Outcome#UNKNOWN} if it has no outcome. */
    void endIfPending() {
      if (outcome == Outcome.PENDING) {
        end(Outcome.UNKNOWN);
      }
    }

    /** Adds {@code outcome} and {@code ended_us}, see {@link Attempts#of}, to a request or an array's object. */
    void addOutcome(ObjectNode object) {
      object.put("outcome", name(outcome));
      object.put("ended_us", endedMicros);
    }
  }

  private static final Map<String, List<Attempt>> BY_HOLD = new ConcurrentHashMap<>();

  private Attempts() {}

  /** Begins an attempt under these holds; there are none if the guard is off, or would refuse but only observes. */
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
   * {@code attempt}, {@code outcome} and {@code ended_us}: when the outcome was known, microseconds since the epoch.
   */
  public static String of(String hold) throws JsonProcessingException {
    ArrayNode array = CommitBody.JSON.createArrayNode();
    addTo(array, hold);
    return CommitBody.JSON.writeValueAsString(array);
  }

  /** Adds the attempts under a hold to an array, see {@link #of}. */
  static void addTo(ArrayNode array, String hold) {
    BY_HOLD.computeIfPresent(hold, (key, list) -> {
      for (Attempt attempt : list) {
        attempt.addOutcome(
            array.addObject().put("version", attempt.version).put("txn", attempt.txn).put("attempt", attempt.id));
      }
      return list;
    });
  }

  /** Returns Python's name of an outcome. */
  static String name(Outcome outcome) {
    return outcome.name().toLowerCase(Locale.ROOT);
  }

  /** Removes the attempts of a hold. */
  public static void forget(String hold) {
    BY_HOLD.remove(hold);
  }
}
