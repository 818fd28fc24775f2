package rerank.opensearch;

import org.opensearch.threadpool.Scheduler;

/** Ends a call of the service if the search of the user is cancelled while it waits: nothing tells the search. */
final class CancellationWatch {
    private static final long INTERVAL = 100; // milliseconds between two looks

    private final SearchPlan plan;
    private volatile Runnable cancelCall;
    private volatile Scheduler.ScheduledCancellable timer;
    private volatile boolean isEnded;

    CancellationWatch(SearchPlan plan) {
        this.plan = plan;
    }

    /** Watch until {@link #end}, which may have come already. cancelCall: ends the call. */
    void begin(Runnable cancelCall) {
        this.cancelCall = cancelCall;
        lookLater();
    }

    private void lookLater() {
        if (isEnded == false && plan.attempt != null) { // otherwise the task of the search is unknown
            timer = plan.asker.service.after(INTERVAL, this::look);
        }
    }

    private void look() {
        if (isEnded) {
            return;
        }
        if (plan.isCancelled()) {
            cancelCall.run();
        } else {
            lookLater();
        }
    }

    void end() {
        isEnded = true;
        Scheduler.ScheduledCancellable planned = timer;
        if (planned != null) {
            planned.cancel();
        }
    }
}
